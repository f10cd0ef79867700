// What    e^x and ln x on a GPU in the very operations of num/simd.h, so with the bits of the host. Slower than the functions of
//         gpu_glu.cuh; for results that the host computes too.
// Owner   ops. Included by GPU sources only.
// Threads Pure.
// Errors  None.
// Tests   ops/sample/sample_gpu_test.cc compares rows of both devices bit by bit.
#pragma once

#include <cstdint>

#include "num/formats.h"

namespace perigee::ops::gpu {

__device__ inline float exact_exp(float x) {
  constexpr float kLowest = -87.33654f;
  constexpr float kHighest = 88.72283f;
  if (x != x) return x;
  if (x < kLowest) return 0.0f;
  if (kHighest < x) return float_from_bits(0x7f800000u);
  const float n = rintf(x * 1.44269504f);
  float r = fmaf(n, -0.693359375f, x);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p, flush_denormal(r * r), r + 1.0f);
  const int whole = static_cast<int>(n);
  const int half = (whole + 256) / 2 - 128;  // two factors, since n reaches 128
  const float first = float_from_bits(static_cast<uint32_t>(half + 127) << 23);
  const float second = float_from_bits(static_cast<uint32_t>(whole - half + 127) << 23);
  return flush_denormal(p * first * second);
}

// For normal positive x; -inf at 0, NaN below.
__device__ inline float exact_log(float x) {
  const float infinity = float_from_bits(0x7f800000u);
  if (x != x || x == infinity) return x;
  if (x == 0) return -infinity;
  if (x < 0) return float_from_bits(0x7fc00000u);
  const auto shifted = static_cast<int32_t>(float_bits(x)) + (0x3f800000 - 0x3f3504f3);
  const int32_t e = (shifted >> 23) - 127;
  const float m = float_from_bits(static_cast<uint32_t>((shifted & 0x007fffff) + 0x3f3504f3));
  const float f = m - 1.0f;
  float p = 7.0376836292e-2f;
  p = fmaf(p, f, -1.1514610310e-1f);
  p = fmaf(p, f, 1.1676998740e-1f);
  p = fmaf(p, f, -1.2420140846e-1f);
  p = fmaf(p, f, 1.4249322787e-1f);
  p = fmaf(p, f, -1.6668057665e-1f);
  p = fmaf(p, f, 2.0000714765e-1f);
  p = fmaf(p, f, -2.4999993993e-1f);
  p = fmaf(p, f, 3.3333331174e-1f);
  const float z = f * f;
  const auto n = static_cast<float>(e);
  float y = flush_denormal(f * z) * p;
  y = fmaf(n, -2.12194440e-4f, flush_denormal(y));
  y = fmaf(z, -0.5f, y);
  y = f + y;
  return fmaf(n, 0.693359375f, y);
}

}  // namespace perigee::ops::gpu
