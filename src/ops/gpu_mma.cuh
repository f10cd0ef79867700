// What    Matrix instructions and fast elementary functions of GPU operations, one name each on every GPU.
// Owner   ops. Included by GPU sources only.
// Threads mma_* need all 32 lanes of a warp; the others are per thread.
// Errors  None.
// Numerics From compute capability 9.0 on these are the instructions that docs/kernels/arithmetic.md names. Elsewhere
//         (compute capability 8.x, HIP) plain code stands in for them: chains of fused multiply-adds over ascending k and the
//         language's own exp2 and division. So every GPU has one arithmetic for all paths of an operation; two kinds of GPU
//         may differ.
// Source  Fragment layout: PTX ISA, "Matrix Fragments for mma.m16n8k16".
//
// D [16, 8] = A [16, 16] B [16, 8] + C, by one warp. With g = lane / 4 and t = lane % 4 a lane holds
//   a[0]: A[g][2t, 2t+1]   a[1]: A[g+8][2t, 2t+1]   a[2]: A[g][2t+8, 2t+9]   a[3]: A[g+8][2t+8, 2t+9]
//   b[0]: B[2t, 2t+1][g]   b[1]: B[2t+8, 2t+9][g]   c[0], c[1]: C[g][2t, 2t+1]   c[2], c[3]: C[g+8][2t, 2t+1]
// with the lower column (of A) or row (of B) in the lower half of a word.
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "ops/gpu_lanes.cuh"
#include "tensor/gpu_platform.h"

namespace perigee::ops::gpu {

__device__ inline float widen_half(uint32_t word, int half, bool fp16) {
  const auto bits = static_cast<uint16_t>(half == 0 ? word & 0xffffu : word >> 16);
  if (fp16) return __half2float(__ushort_as_half(bits));
  return to_float(bf16{bits});
}

// The same product in plain code.
__device__ inline void mma_plain(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bool fp16) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4;
  const int t = lane % 4;
  for (int k = 0; k < 16; ++k) {
    const int from = k % 8 / 2;
    const uint32_t upper = lane_value(a[k / 8 * 2], g * 4 + from);
    const uint32_t lower = lane_value(a[k / 8 * 2 + 1], g * 4 + from);
    const uint32_t left = lane_value(b[k / 8], 2 * t * 4 + from);
    const uint32_t right = lane_value(b[k / 8], (2 * t + 1) * 4 + from);
    c[0] = fmaf(widen_half(upper, k % 2, fp16), widen_half(left, k % 2, fp16), c[0]);
    c[1] = fmaf(widen_half(upper, k % 2, fp16), widen_half(right, k % 2, fp16), c[1]);
    c[2] = fmaf(widen_half(lower, k % 2, fp16), widen_half(left, k % 2, fp16), c[2]);
    c[3] = fmaf(widen_half(lower, k % 2, fp16), widen_half(right, k % 2, fp16), c[3]);
  }
}

// Two neighbours of a row in memory: a word of an operand.
template <class Half>
__device__ inline uint32_t operand(const Half* p) {
  return *reinterpret_cast<const uint32_t*>(p);
}

// The same of a row of `columns` numbers that may end between them, and at any address if `words` is false.
__device__ inline uint32_t operand(const bf16* row, int64_t column, int64_t columns, bool words) {
  if (column >= columns) return 0;
  if (words) return operand(row + column);
  const uint32_t upper = column + 1 < columns ? row[column + 1].bits : 0u;
  return upper << 16 | row[column].bits;
}

// C += A B on BF16 operands.
__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  mma_plain(c, a, b, false);
#endif
}

// C += A B on FP16 operands.
__device__ inline void mma_fp16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  mma_plain(c, a, b, true);
#endif
}

// Both products of two pairs of BF16, exact when one factor of each is a power of two and the product is in range; denormals
// count.
__device__ inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t d;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#else
  const uint32_t lower = to_bf16(widen_half(a, 0, false) * widen_half(b, 0, false)).bits;
  const uint32_t upper = to_bf16(widen_half(a, 1, false) * widen_half(b, 1, false)).bits;
  return upper << 16 | lower;
#endif
}

// 2^x; results below 2^-126 are 0.
__device__ inline float fast_ex2(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
#endif
}

// 1 / x; operands and results below 2^-126 count as 0.
__device__ inline float fast_rcp(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  const float y = 1.0f / (fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x);
  return fabsf(y) < 0x1p-126f ? copysignf(0.0f, y) : y;
#endif
}

// 1 / sqrt(x).
__device__ inline float fast_rsqrt(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / sqrtf(x);
#endif
}

}  // namespace perigee::ops::gpu
