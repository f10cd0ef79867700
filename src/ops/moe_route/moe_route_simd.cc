#include "ops/moe_route/moe_route_simd.h"

#include "num/simd.h"

namespace perigee::ops::cpu {

template <>
void route_scores<Isa::PERIGEE_ISA>(const float* logits, const float* bias, int64_t experts,
                                    float* scores, float* keys) {
  for (int64_t e = 0; e < experts; e += 16) {
    const int64_t n = experts - e < 16 ? experts - e : 16;
    const simd::f32x16 s = simd::sigmoid(simd::load_part(logits + e, n));
    simd::store_part(scores + e, s, n);
    simd::store_part(keys + e, simd::add(s, simd::load_part(bias + e, n)), n);
  }
}

}  // namespace perigee::ops::cpu
