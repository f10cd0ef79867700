#include "ops/sample/sample_simd.h"

#include "num/simd.h"

namespace perigee::ops {
namespace {

using namespace simd;

// Up to 16 logits; lanes beyond n are -inf.
PERIGEE_INLINE f32x16 load_logits(const float* x, int64_t n) {
  f32x16 v;
  if (n >= 16) {
    v = load(x);
  } else {
    float lanes[16];
    for (int64_t i = 0; i < 16; ++i) lanes[i] = i < n ? x[i] : -INFINITY;
    v = load(lanes);
  }
  return min(select(is_nan(v), set1(-INFINITY), v), set1(3.40282347e38f));
}

PERIGEE_INLINE float first(f32x16 x) {
  float lanes[16];
  store(lanes, x);
  return lanes[0];
}

// -ln(1 - v) for v in (0, 1): the logarithm of the rounded 1 - v, corrected for that rounding
// (Kahan).
PERIGEE_INLINE f32x16 exponential_draw(f32x16 v) {
  const f32x16 w = sub(set1(1.0f), v);
  const f32x16 gone = sub(set1(1.0f), w);  // v as it was rounded; exact
  const f32x16 corrected = mul(log(w), div(v, gone));
  return select(less(zero(), gone), neg(corrected), v);
}

}  // namespace

template <>
SplitSum sum_split<Isa::PERIGEE_ISA>(const float* x, int64_t n) {
  f32x16 highest = set1(-INFINITY);
  for (int64_t i = 0; i < n; i += 16) highest = max(load_logits(x + i, n - i), highest);
  const float top = hmax(highest);
  if (top == -INFINITY) return {top, 0.0f};
  f32x16 sum = zero();
  for (int64_t i = 0; i < n; i += 16)
    sum = add(sum, exp(sub(load_logits(x + i, n - i), set1(top))));
  return {top, hsum(sum)};
}

template <>
float join_splits<Isa::PERIGEE_ISA>(const SplitSum* splits, int64_t count) {
  float top = -INFINITY;
  for (int64_t i = 0; i < count; ++i) top = splits[i].max > top ? splits[i].max : top;
  if (top == -INFINITY) return top;
  float sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum = sum + splits[i].sum * first(exp(set1(splits[i].max - top)));
  return top + first(log(set1(sum)));
}

template <>
void scale_logits<Isa::PERIGEE_ISA>(const float* x, int64_t n, float shift, float factor,
                                    float* scaled, float* exponential) {
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 y = mul(sub(load_logits(x + i, n - i), set1(shift)), set1(factor));
    store_part(scaled + i, y, n - i);
    store_part(exponential + i, exp(y), n - i);
  }
}

template <>
void add_noise<Isa::PERIGEE_ISA>(const float* scaled, const float* v, int64_t n, float* scores) {
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 noise = neg(log(exponential_draw(load_part(v + i, n - i))));
    store_part(scores + i, add(load_part(scaled + i, n - i), noise), n - i);
  }
}

}  // namespace perigee::ops
