#include <cmath>
#include <vector>

#include "ops/moe_route/moe_route.h"
#include "ops/moe_route/moe_route_choose.h"

namespace perigee::ops::ref {

void moe_route(const Context&, const Tensor& logits, const Tensor& bias, const RouteParams& params,
               const Tensor& ids, const Tensor& weights) {
  const int64_t experts = logits.dims[1];
  std::vector<double> scores(experts);
  std::vector<double> keys(experts);
  std::vector<double> best(params.active);
  for (int64_t t = 0; t < logits.rows(); ++t) {
    for (int64_t e = 0; e < experts; ++e) {
      scores[e] = 1 / (1 + std::exp(-logits.row<double>(t)[e]));
      keys[e] = scores[e] + double{bias.as<float>()[e]};
    }
    int32_t* const chosen = ids.row<int32_t>(t);
    choose_experts(keys.data(), experts, params.active, best.data(), chosen);
    double sum = 0;
    for (int64_t a = 0; a < params.active; ++a) sum += scores[chosen[a]];
    const double divisor = params.renormalize ? sum + 1e-20 : 1;
    for (int64_t a = 0; a < params.active; ++a) {
      weights.row<double>(t)[a] = scores[chosen[a]] / divisor * params.scale;
    }
  }
}

}  // namespace perigee::ops::ref
