#include "ops/act/act_simd.h"

#include "num/simd.h"

namespace perigee::ops {
namespace {

using namespace simd;

template <class F>
PERIGEE_INLINE void each(const bf16* a, const bf16* b, int64_t n, bf16* out, F f) {
  for (int64_t i = 0; i < n; i += 16) {
    store_bf16_part(out + i, f(load_bf16_part(a + i, n - i), load_bf16_part(b + i, n - i)), n - i);
  }
}

}  // namespace

template <>
void act_row<Isa::PERIGEE_ISA>(ActFunction f, const bf16* a, const bf16* b, float b1, float b2,
                               int64_t n, bf16* out) {
  switch (f) {
    case ActFunction::kSitu: {
      const f32x16 s1 = set1(b1);
      const f32x16 s2 = set1(b2);
      return each(a, b, n, out, [=](f32x16 g, f32x16 u) {
        const f32x16 gated = mul(mul(s1, simd::tanh(div(g, s1))), sigmoid(g));
        return mul(gated, mul(s2, simd::tanh(div(u, s2))));
      });
    }
    case ActFunction::kSilu:
      return each(a, b, n, out, [](f32x16 g, f32x16 u) { return mul(mul(g, sigmoid(g)), u); });
    case ActFunction::kSigmoidGate:
      return each(a, b, n, out, [](f32x16 x, f32x16 g) { return mul(x, sigmoid(g)); });
    case ActFunction::kAdd:
      return each(a, b, n, out, [](f32x16 x, f32x16 y) { return simd::add(x, y); });
  }
}

}  // namespace perigee::ops
