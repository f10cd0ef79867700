#include <vector>

#include "ops/moe_route/moe_route.h"
#include "ops/moe_route/moe_route_choose.h"
#include "ops/moe_route/moe_route_simd.h"

namespace perigee::ops::cpu {

void moe_route(const Context& context, const Tensor& logits, const Tensor& bias,
               const RouteParams& params, const Tensor& ids, const Tensor& weights) {
  const int64_t experts = logits.dims[1];
  const auto scale = static_cast<float>(params.scale);
  context.pool->parallel_for(logits.rows(), [&](int64_t begin, int64_t end) {
    std::vector<float> scores(experts);
    std::vector<float> keys(experts);
    std::vector<float> best(params.active);
    for (int64_t t = begin; t < end; ++t) {
      with_isa(context.isa, [&]<Isa isa>() {
        route_scores<isa>(logits.row<float>(t), bias.as<float>(), experts, scores.data(),
                          keys.data());
      });
      int32_t* const chosen = ids.row<int32_t>(t);
      choose_experts(keys.data(), experts, params.active, best.data(), chosen);
      float sum = 0;
      for (int64_t a = 0; a < params.active; ++a) sum += scores[chosen[a]];
      const float divisor = params.renormalize ? sum + 1e-20f : 1.0f;
      for (int64_t a = 0; a < params.active; ++a) {
        weights.row<float>(t)[a] = scores[chosen[a]] / divisor * scale;
      }
    }
  });
}

}  // namespace perigee::ops::cpu
