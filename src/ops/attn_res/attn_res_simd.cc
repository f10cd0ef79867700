#include "ops/attn_res/attn_res_simd.h"

#include "num/simd.h"

namespace perigee::ops {
namespace {

using namespace simd;

constexpr int64_t kRowsMax = 256;

PERIGEE_INLINE float score(const bf16* v, const float* query, float eps, int64_t n) {
  f32x16 dot = zero();
  f32x16 square = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 x = load_bf16_part(v + i, n - i);
    dot = fma(x, load_part(query + i, n - i), dot);
    square = fma(x, x, square);
  }
  const f32x16 mean = div(set1(hsum(square)), set1(static_cast<float>(n)));
  const f32x16 scale = div(set1(1.0f), simd::sqrt(add(mean, set1(eps))));
  float lanes[16];
  store(lanes, mul(set1(hsum(dot)), scale));
  return lanes[0];
}

// Scores to weights, in place, in row order.
PERIGEE_INLINE void softmax(float* s, int64_t count) {
  float highest = s[0];
  for (int64_t j = 1; j < count; ++j) highest = s[j] > highest ? s[j] : highest;
  float sum = 0;
  for (int64_t j = 0; j < count; j += 16) {
    store_part(s + j, exp(sub(load_part(s + j, count - j), set1(highest))), count - j);
  }
  for (int64_t j = 0; j < count; ++j) sum = sum + s[j];
  for (int64_t j = 0; j < count; ++j) s[j] = s[j] / sum;
}

}  // namespace

template <>
void attn_res_token<Isa::PERIGEE_ISA>(const bf16* const* rows, int64_t count, const float* query,
                                      float eps, int64_t n, bf16* out) {
  float weight[kRowsMax];
  for (int64_t j = 0; j < count; ++j) weight[j] = score(rows[j], query, eps, n);
  softmax(weight, count);
  for (int64_t i = 0; i < n; i += 16) {
    f32x16 y = zero();
    for (int64_t j = 0; j < count; ++j)
      y = fma(set1(weight[j]), load_bf16_part(rows[j] + i, n - i), y);
    store_bf16_part(out + i, y, n - i);
  }
}

}  // namespace perigee::ops
