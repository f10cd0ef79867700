#include <algorithm>
#include <vector>

#include "ops/moe_permute/moe_permute.h"
#include "ops/moe_permute/moe_permute_simd.h"

namespace perigee::ops::cpu {

void moe_combine(const Context& context, const Tensor& y, const Tensor& place,
                 const Tensor& weights, const Tensor& out) {
  const int64_t width = y.dims[1];
  const int64_t active = place.dims[1];
  constexpr int64_t kPiece = 512;  // columns of one task, so that a single token uses every thread
  const int64_t pieces = (width + kPiece - 1) / kPiece;
  context.pool->parallel_for(place.rows() * pieces, [&](int64_t begin, int64_t end) {
    std::vector<const float*> rows(active);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / pieces;
      const int64_t z = i % pieces * kPiece;
      for (int64_t a = 0; a < active; ++a) rows[a] = y.row<float>(place.row<int32_t>(t)[a]) + z;
      with_isa(context.isa, [&]<Isa isa>() {
        combine_row<isa>(rows.data(), weights.row<float>(t), active, std::min(kPiece, width - z),
                         out.row<bf16>(t) + z);
      });
    }
  });
}

}  // namespace perigee::ops::cpu
