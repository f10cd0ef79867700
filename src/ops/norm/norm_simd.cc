#include "ops/norm/norm_simd.h"

#include "num/simd.h"

namespace perigee::ops {
namespace {

using namespace simd;

// 1 / sqrt(sum / n + eps) in every lane.
PERIGEE_INLINE f32x16 inverse_root(f32x16 partial, int64_t n, float eps) {
  const f32x16 mean = div(set1(hsum(partial)), set1(static_cast<float>(n)));
  return div(set1(1.0f), simd::sqrt(add(mean, set1(eps))));
}

}  // namespace

template <>
void rms_norm_row<Isa::PERIGEE_ISA>(const bf16* x, NormWeight weight, float eps, int64_t n,
                                    bf16* out) {
  f32x16 sum = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 v = load_bf16_part(x + i, n - i);
    sum = fma(v, v, sum);
  }
  const f32x16 scale = inverse_root(sum, n, eps);
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 v = load_bf16_part(x + i, n - i);
    const f32x16 w = weight.half != nullptr ? load_bf16_part(weight.half + i, n - i)
                                            : load_part(weight.full + i, n - i);
    store_bf16_part(out + i, mul(mul(v, scale), w), n - i);
  }
}

template <>
void layer_norm_row<Isa::PERIGEE_ISA>(const bf16* x, const float* weight, const float* bias,
                                      float eps, int64_t n, bf16* out) {
  f32x16 sum = zero();
  for (int64_t i = 0; i < n; i += 16) sum = add(sum, load_bf16_part(x + i, n - i));
  const f32x16 mean = div(set1(hsum(sum)), set1(static_cast<float>(n)));
  f32x16 square = zero();
  for (int64_t i = 0; i < n; i += 16) {
    f32x16 d = sub(load_bf16_part(x + i, n - i), mean);
    if (n - i < 16) {
      float lanes[16];  // the lanes beyond the row hold -mean, which must not count
      store(lanes, d);
      d = load_part(lanes, n - i);
    }
    square = fma(d, d, square);
  }
  const f32x16 scale = inverse_root(square, n, eps);
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 d = sub(load_bf16_part(x + i, n - i), mean);
    const f32x16 y = fma(mul(d, scale), load_part(weight + i, n - i), load_part(bias + i, n - i));
    store_bf16_part(out + i, y, n - i);
  }
}

template <>
void gated_rms_norm_row<Isa::PERIGEE_ISA>(const float* x, const float* weight, const bf16* gate,
                                          float eps, int64_t n, bf16* out) {
  f32x16 sum = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 v = load_part(x + i, n - i);
    sum = fma(v, v, sum);
  }
  const f32x16 scale = inverse_root(sum, n, eps);
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 y = mul(mul(load_part(x + i, n - i), scale), load_part(weight + i, n - i));
    store_bf16_part(out + i, mul(y, sigmoid(load_bf16_part(gate + i, n - i))), n - i);
  }
}

}  // namespace perigee::ops
