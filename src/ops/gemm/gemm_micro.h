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
constexpr int kRowsMax =
    6;  // 12 chains, two weights and one activation; the accumulators wait in L1
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
constexpr int64_t kPrefetchBytes = 2048;  // ahead of the streaming loop: two blocks

// R rows times H vectors of one panel over `blocks` blocks of one segment; total = sum, or total +
// sum. With kScaled each block's sum is multiplied by its row's scale, scales[block][16], while it
// is added.
template <int R, int H, bool kScaled>
PERIGEE_INLINE void micro_tile(const float* x, int64_t x_stride, const uint8_t* w, int64_t blocks,
                               const float* scales, bool first, float* total) {
  Vec acc[R][H];
  for (int r = 0; r < R; ++r) {
    for (int h = 0; h < H; ++h) acc[r][h] = vec_zero();
  }
  for (int64_t b = 0; b < blocks; ++b) {
    Vec even[R][H];
    Vec odd[R][H];
    for (int r = 0; r < R; ++r) {
      for (int h = 0; h < H; ++h) even[r][h] = odd[r][h] = vec_zero();
    }
    const float* const xb = x + b * 32;
    const uint8_t* const wb = w + b * kBlockBytes;
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      Vec we[H];
      Vec wo[H];
      for (int h = 0; h < H; ++h) load_pairs(wb + j * kPairBytes + h * kLanes * 4, we[h], wo[h]);
      if constexpr (R <= 2) prefetch(wb + j * kPairBytes + kPrefetchBytes);
      for (int r = 0; r < R; ++r) {
        const Vec xe = vec_set1(xb + r * x_stride + 2 * j);
        for (int h = 0; h < H; ++h) even[r][h] = vec_fma(xe, we[h], even[r][h]);
        const Vec xo = vec_set1(xb + r * x_stride + 2 * j + 1);
        for (int h = 0; h < H; ++h) odd[r][h] = vec_fma(xo, wo[h], odd[r][h]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int h = 0; h < H; ++h) {
        const Vec sum = vec_add(even[r][h], odd[r][h]);
        if constexpr (kScaled) {
          acc[r][h] = vec_fma(vec_load(scales + b * 16 + h * kLanes), sum, acc[r][h]);
        } else {
          acc[r][h] = vec_add(acc[r][h], sum);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int h = 0; h < H; ++h) {
      float* const to = total + r * 16 + h * kLanes;
      vec_store(to, first ? acc[r][h] : vec_add(vec_load(to), acc[r][h]));
    }
  }
}

// All 16 outputs of R rows. Few rows read each line once; more rows go through half panels, whose
// second reading comes from the cache, because two halves would not fit the registers.
template <int R, bool kScaled>
void micro_rows(const float* x, int64_t x_stride, const uint8_t* w, int64_t blocks,
                const float* scales, bool first, float* total) {
  if constexpr (kHalves == 1 || R <= 2) {
    micro_tile<R, kHalves, kScaled>(x, x_stride, w, blocks, scales, first, total);
  } else {
    for (int h = 0; h < kHalves; ++h) {
      const float* const half_scales = kScaled ? scales + h * kLanes : nullptr;
      micro_tile<R, 1, kScaled>(x, x_stride, w + h * kLanes * 4, blocks, half_scales, first,
                                total + h * kLanes);
    }
  }
}

// rows <= kRowsMax.
template <bool kScaled, int R = kRowsMax>
void micro_any(int rows, const float* x, int64_t x_stride, const uint8_t* w, int64_t blocks,
               const float* scales, bool first, float* total) {
  if constexpr (R > 1) {
    if (rows < R) {
      return micro_any<kScaled, R - 1>(rows, x, x_stride, w, blocks, scales, first, total);
    }
  }
  micro_rows<R, kScaled>(x, x_stride, w, blocks, scales, first, total);
}

}  // namespace
}  // namespace perigee::ops::cpu
