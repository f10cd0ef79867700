#include "ops/moe_permute/moe_permute_simd.h"

#include "num/simd.h"

namespace perigee::ops::cpu {

template <>
void combine_row<Isa::PERIGEE_ISA>(const float* const* rows, const float* weights, int64_t active,
                                   int64_t width, bf16* out) {
  for (int64_t z = 0; z < width; z += 16) {
    const int64_t n = width - z < 16 ? width - z : 16;
    simd::f32x16 sum = simd::zero();
    for (int64_t a = 0; a < active; ++a) {
      sum = simd::fma(simd::set1(weights[a]), simd::load_part(rows[a] + z, n), sum);
    }
    simd::store_bf16_part(out + z, sum, n);
  }
}

}  // namespace perigee::ops::cpu
