// What    The register-blocked inner loop that ops/gemm and ops/moe_gemm share: a few rows times
// one panel of 16 outputs. Owner   ops/gemm. Included only by *_simd.cc files, which cmake compiles
// once per instruction set. Threads Pure functions on raw pointers. Errors  None.
#pragma once

#include "num/simd.h"

namespace perigee::ops::cpu {
namespace {

// A vector holds kLanes outputs of the panel; kHalves vectors make the 16.
#if defined(__AVX512F__)
using Vec = __m512;
constexpr int kLanes = 16;
constexpr int kRowsMax = 8;  // 16 chains and 8 accumulators of 32 registers
PERIGEE_INLINE Vec vec_zero() {
  return _mm512_setzero_ps();
}
PERIGEE_INLINE Vec vec_set1(const float* p) {
  return _mm512_set1_ps(*p);
}
PERIGEE_INLINE Vec vec_load(const float* p) {
  return _mm512_loadu_ps(p);
}
PERIGEE_INLINE void vec_store(float* p, Vec a) {
  _mm512_storeu_ps(p, a);
}
PERIGEE_INLINE Vec vec_add(Vec a, Vec b) {
  return _mm512_add_ps(a, b);
}
PERIGEE_INLINE Vec vec_fma(Vec a, Vec b, Vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
PERIGEE_INLINE void load_pairs(const uint8_t* p, Vec& even, Vec& odd) {
  const __m512i w = _mm512_loadu_si512(p);
  even = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
  odd = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
PERIGEE_INLINE void prefetch(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}
#elif defined(__AVX2__)
using Vec = __m256;
constexpr int kLanes = 8;
constexpr int kRowsMax = 2;  // 8 chains, as many as their latency needs, in 16 registers
PERIGEE_INLINE Vec vec_zero() {
  return _mm256_setzero_ps();
}
PERIGEE_INLINE Vec vec_set1(const float* p) {
  return _mm256_broadcast_ss(p);
}
PERIGEE_INLINE Vec vec_load(const float* p) {
  return _mm256_loadu_ps(p);
}
PERIGEE_INLINE void vec_store(float* p, Vec a) {
  _mm256_storeu_ps(p, a);
}
PERIGEE_INLINE Vec vec_add(Vec a, Vec b) {
  return _mm256_add_ps(a, b);
}
PERIGEE_INLINE Vec vec_fma(Vec a, Vec b, Vec c) {
  return _mm256_fmadd_ps(a, b, c);
}
PERIGEE_INLINE void load_pairs(const uint8_t* p, Vec& even, Vec& odd) {
  const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  even = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
  odd = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
PERIGEE_INLINE void prefetch(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}
#else
using Vec = simd::f32x16;
constexpr int kLanes = 16;
constexpr int kRowsMax = 2;
PERIGEE_INLINE Vec vec_zero() {
  return simd::zero();
}
PERIGEE_INLINE Vec vec_set1(const float* p) {
  return simd::set1(*p);
}
PERIGEE_INLINE Vec vec_load(const float* p) {
  return simd::load(p);
}
PERIGEE_INLINE void vec_store(float* p, Vec a) {
  simd::store(p, a);
}
PERIGEE_INLINE Vec vec_add(Vec a, Vec b) {
  return simd::add(a, b);
}
PERIGEE_INLINE Vec vec_fma(Vec a, Vec b, Vec c) {
  return simd::fma(a, b, c);
}
PERIGEE_INLINE void load_pairs(const uint8_t* p, Vec& even, Vec& odd) {
  int32_t w[16];
  std::memcpy(w, p, sizeof(w));
  const simd::i32x16 pairs = simd::loadi(w);
  even = simd::from_bits(simd::shl<16>(pairs));
  odd = simd::from_bits(simd::andi(pairs, simd::set1i(static_cast<int32_t>(0xffff0000u))));
}
PERIGEE_INLINE void prefetch(const uint8_t*) {}
#endif

constexpr int kHalves = 16 / kLanes;
constexpr int64_t kPairBytes = 64;
constexpr int64_t kBlockBytes = 16 * kPairBytes;
constexpr int kStreamRowsMax = 2;         // rows up to which reading the weights is the limit
constexpr int64_t kPrefetchBytes = 2048;  // ahead of the streaming loop: two blocks

// The activations of R rows at one block. Rows are reached as pointer + {0, 1, 2} * stride + constant, which are address
// modes; left alone, the compiler precomputes an address for every row and column and spills them.
template <int R>
struct RowPointers {
  const char* p[(R + 2) / 3];
  int64_t stride;

  PERIGEE_INLINE RowPointers(const float* x, int64_t row_stride) : stride(row_stride * 4) {
    for (int i = 0; i < (R + 2) / 3; ++i) {
      p[i] = reinterpret_cast<const char*>(x) + 3 * i * stride;
      asm("" : "+r"(p[i]));
    }
    asm volatile("" : "+r"(stride));
  }
  PERIGEE_INLINE Vec broadcast(int row, int column) const {
    return vec_set1(reinterpret_cast<const float*>(p[row / 3] + row % 3 * stride + 4 * column));
  }
};

// R rows times one panel over `blocks` blocks: acc[row][16] = sum, or += sum unless from_zero. With kScaled each block's
// sum is multiplied by its output's scale, scales[block][16], while it is added.
template <int R, bool kScaled>
void micro_tile(const float* x, int64_t x_stride, const uint8_t* w, int64_t blocks,
                const float* scales, bool from_zero, float* acc) {
  Vec sum[R][kHalves];
  for (int r = 0; r < R; ++r) {
    for (int h = 0; h < kHalves; ++h) {
      sum[r][h] = from_zero ? vec_zero() : vec_load(acc + r * 16 + h * kLanes);
    }
  }
  for (int64_t b = 0; b < blocks; ++b) {
    Vec even[R][kHalves];
    Vec odd[R][kHalves];
    for (int r = 0; r < R; ++r) {
      for (int h = 0; h < kHalves; ++h) even[r][h] = odd[r][h] = vec_zero();
    }
    const RowPointers<R> rows(x + b * 32, x_stride);
    const uint8_t* const wb = w + b * kBlockBytes;
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      Vec we[kHalves];
      Vec wo[kHalves];
      for (int h = 0; h < kHalves; ++h)
        load_pairs(wb + j * kPairBytes + h * kLanes * 4, we[h], wo[h]);
      prefetch(wb + j * kPairBytes + kPrefetchBytes);
      for (int r = 0; r < R; ++r) {
        const Vec xe = rows.broadcast(r, 2 * j);
        for (int h = 0; h < kHalves; ++h) even[r][h] = vec_fma(xe, we[h], even[r][h]);
        const Vec xo = rows.broadcast(r, 2 * j + 1);
        for (int h = 0; h < kHalves; ++h) odd[r][h] = vec_fma(xo, wo[h], odd[r][h]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int h = 0; h < kHalves; ++h) {
        const Vec both = vec_add(even[r][h], odd[r][h]);
        if constexpr (kScaled) {
          sum[r][h] = vec_fma(vec_load(scales + b * 16 + h * kLanes), both, sum[r][h]);
        } else {
          sum[r][h] = vec_add(sum[r][h], both);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int h = 0; h < kHalves; ++h) vec_store(acc + r * 16 + h * kLanes, sum[r][h]);
  }
}

// rows <= kRowsMax.
template <bool kScaled, int R = kRowsMax>
void micro_any(int rows, const float* x, int64_t x_stride, const uint8_t* w, int64_t blocks,
               const float* scales, bool from_zero, float* acc) {
  if constexpr (R > 1) {
    if (rows < R) {
      return micro_any<kScaled, R - 1>(rows, x, x_stride, w, blocks, scales, from_zero, acc);
    }
  }
  micro_tile<R, kScaled>(x, x_stride, w, blocks, scales, from_zero, acc);
}

// Any number of rows times one panel over one segment: totals[row][16] = sum, or += sum unless first. Many rows walk over
// sub-segments whose weights (14 KiB) and activations stay in L1; accumulators wait in memory between them.
template <bool kScaled>
PERIGEE_INLINE void micro_segment(const float* x, int64_t x_stride, int64_t rows, const uint8_t* w,
                                  int64_t blocks, const float* scales, bool first, float* totals) {
  constexpr int64_t kChunk = 8 * kRowsMax;
  constexpr int64_t kSubBlocks = 14;
  alignas(64) float part[kChunk * 16];
  const int64_t sub = rows <= kStreamRowsMax ? blocks : kSubBlocks;
  for (int64_t chunk = 0; chunk < rows; chunk += kChunk) {
    const int64_t now = rows - chunk < kChunk ? rows - chunk : kChunk;
    float* const to = totals + chunk * 16;
    float* const acc = first ? to : part;
    for (int64_t b = 0; b == 0 || b < blocks; b += sub) {
      const int64_t count = blocks - b < sub ? blocks - b : sub;
      const float* const sub_scales = kScaled ? scales + b * 16 : nullptr;
      for (int64_t r = 0; r < now; r += kRowsMax) {
        const int group = static_cast<int>(now - r < kRowsMax ? now - r : kRowsMax);
        micro_any<kScaled>(group, x + (chunk + r) * x_stride + b * 32, x_stride,
                           w + b * kBlockBytes, count, sub_scales, b == 0, acc + r * 16);
      }
    }
    for (int64_t i = 0; !first && i < now * 16; i += kLanes) {
      vec_store(to + i, vec_add(vec_load(to + i), vec_load(part + i)));
    }
  }
}

}  // namespace
}  // namespace perigee::ops::cpu
