#include "num/simd.h"
#include "num/simd_test_cases.h"

namespace perigee {

template <>
void simd_apply<Isa::PERIGEE_ISA>(const float* pa, const float* pb, const float* pc,
                                  float out[kSimdFunctions][16]) {
  using namespace simd;
  const f32x16 a = load(pa);
  const f32x16 b = load(pb);
  const f32x16 c = load(pc);
  store(out[0], add(a, b));
  store(out[1], mul(a, b));
  store(out[2], div(a, b));
  store(out[3], fma(a, b, c));
  store(out[4], max(a, b));
  store(out[5], min(a, b));
  store(out[6], exp(a));
  store(out[7], log(a));
  store(out[8], tanh(a));
  store(out[9], sigmoid(a));
  store(out[10], simd::sqrt(abs(a)));
  bf16 half[16];
  store_bf16(half, a);
  store(out[11], load_bf16(half));
  for (float& x : out[12]) x = 0;
  out[12][0] = hsum(b);
  out[12][1] = hmax(a);
  store_part(out[12] + 4, load_part(pc, 5), 5);
}

}  // namespace perigee
