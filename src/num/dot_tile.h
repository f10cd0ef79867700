// What    Many dot products at once: M rows against 16 V columns, each an ascending chain of FP32
//         fused multiply-adds.
// Owner   num. Included only by files that cmake compiles once per set (PERIGEE_ISA).
// Threads Pure functions.
// Errors  None.
#pragma once

#include <cstring>

#include "num/simd.h"

namespace perigee::simd {
namespace {

// Rows and vectors of columns of one register tile: what the register file of each set holds.
#if defined(__AVX512F__)
constexpr int kTileVectors = 4;
constexpr int kTileRows = 6;
#elif defined(__AVX2__)
constexpr int kTileVectors = 1;
constexpr int kTileRows = 6;
#else
constexpr int kTileVectors = 1;
constexpr int kTileRows = 1;
#endif

// out[m][v] lane l = sum over d ascending, from zero, of a[m * a_stride + d] * b[d * b_stride + v *
// b_vector + l]. A chain depends on its own row and column only, so how rows and columns are
// grouped never shows in the bits.
template <int M, int V>
PERIGEE_INLINE void dot_tile(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                             int64_t b_vector, int64_t depth, f32x16 (&out)[M][V]) {
  f32x16 acc[M][V];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[m][v] = zero();
  }
  for (int64_t d = 0; d < depth; ++d) {
    f32x16 column[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) column[v] = load(b + d * b_stride + v * b_vector);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const f32x16 row = set1(a[m * a_stride + d]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[m][v] = fma(row, column[v], acc[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) out[m][v] = acc[m][v];
  }
}

// How many of `rows` rows the next register tile takes, so that the tiles of one product are of
// nearly equal size.
PERIGEE_INLINE int64_t tile_rows(int64_t rows) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  return (rows + tiles - 1) / tiles;
}

// Calls f.template operator()<m>() for 1 <= m <= kTileRows.
template <int M = kTileRows, class F>
PERIGEE_INLINE void with_tile_rows(int64_t m, F&& f) {
  if constexpr (M > 1) {
    if (m < M) return with_tile_rows<M - 1>(m, f);
  }
  f.template operator()<M>();
}

// out[j * out_stride + i] = in[i * in_stride + j] for i in [0, 16), j in [0, 16). Moves bits of any four-byte type.
PERIGEE_INLINE void transpose16(const float* in, int64_t in_stride, float* out,
                                int64_t out_stride) {
#if defined(__AVX2__)
  for (int block = 0; block < 4; ++block) {
    const float* from = in + block / 2 * 8 * in_stride + block % 2 * 8;
    float* to = out + block % 2 * 8 * out_stride + block / 2 * 8;
    __m256 r[8];
    __m256 s[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * in_stride);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      s[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      s[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      r[4 * i] = _mm256_shuffle_ps(s[4 * i], s[4 * i + 2], 0x44);
      r[4 * i + 1] = _mm256_shuffle_ps(s[4 * i], s[4 * i + 2], 0xee);
      r[4 * i + 2] = _mm256_shuffle_ps(s[4 * i + 1], s[4 * i + 3], 0x44);
      r[4 * i + 3] = _mm256_shuffle_ps(s[4 * i + 1], s[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_ps(to + i * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
      _mm256_storeu_ps(to + (i + 4) * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
  }
#else
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) std::memcpy(out + j * out_stride + i, in + i * in_stride + j, 4);
  }
#endif
}

}  // namespace
}  // namespace perigee::simd
