#include "ops/attn_res/attn_res.h"
#include "ops/attn_res/attn_res_simd.h"

namespace perigee::ops::cpu {

void attn_res_mix(const Context& context, std::span<const Tensor> rows, const Tensor& query,
                  double eps, const Tensor& out) {
  context.pool->parallel_for(out.rows(), [&](int64_t begin, int64_t end) {
    const bf16* pointers[kAttnResRowsMax];
    for (int64_t t = begin; t < end; ++t) {
      for (size_t j = 0; j < rows.size(); ++j) pointers[j] = rows[j].row<bf16>(t);
      with_isa(context.isa, [&]<Isa isa>() {
        attn_res_token<isa>(pointers, static_cast<int64_t>(rows.size()), query.as<float>(),
                            static_cast<float>(eps), out.dims[1], out.row<bf16>(t));
      });
    }
  });
}

}  // namespace perigee::ops::cpu
