#include "ops/index_score/index_score_simd.h"

#include "num/dot_tile.h"
#include "num/record_simd.h"

namespace perigee::ops::cpu {
namespace {

using namespace simd;

// M heads from h on, against 16 V keys: dots, relu, gates, added to sum in head order.
template <int M, int V>
PERIGEE_INLINE void add_heads(const float* q, const float* gates, int64_t j, const float* tile,
                              f32x16 (&sum)[V]) {
  f32x16 dots[M][V];
  dot_tile<M, V>(q, j, tile, 16, j * 16, j, dots);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const f32x16 gate = set1(gates[m]);
    // max in this order keeps NaN.
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[v] = fma(gate, max(zero(), dots[m][v]), sum[v]);
  }
}

// One row against 16 V keys, all heads.
template <int V>
PERIGEE_INLINE void score_row(const float* q, const float* gates, int64_t heads, int64_t j,
                              const float* tile, f32x16 (&sum)[V]) {
  for (int v = 0; v < V; ++v) sum[v] = zero();
  const int64_t step = heads > 0 ? tile_rows(heads) : 1;
  int64_t h = 0;
  while (h < heads) {
    const int64_t m = heads - h < step ? heads - h : step;
    with_tile_rows(m, [&]<int M>() { add_heads<M, V>(q + h * j, gates + h, j, tile, sum); });
    h += m;
  }
}

}  // namespace

template <>
float IndexKernels<Isa::PERIGEE_ISA>::query(KeyFormat format, const bf16* q, int64_t j,
                                            uint8_t* bytes, float* out) {
  uint8_t* scales = bytes + key_value_bytes(format, j);
  encode_key(format, q, j, bytes, scales);
  decode_key(format, bytes, scales, j, out);
  float scale = 1.0f;
  if (format == KeyFormat::kFp8 && j <= kFp8KeyGroup) std::memcpy(&scale, scales, 4);
  return scale;
}

template <>
void IndexKernels<Isa::PERIGEE_ISA>::tile(KeyFormat format, const uint8_t* page, int64_t j,
                                          int64_t n, float* row_major, IndexTile out) {
  const int64_t padded = (j + 15) / 16 * 16;
  for (int64_t block = 0; block < 4; ++block) {
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t slot = block * 16 + i;
      float* row = row_major + i * padded;
      out.scales[slot] = 1.0f;
      if (slot >= n) {
        for (int64_t d = 0; d < j; ++d) row[d] = 0.0f;
        continue;
      }
      const uint8_t* scales = page + key_scale_offset(format, j, slot);
      decode_key(format, page + key_value_offset(format, j, slot), scales, j, row);
      if (format == KeyFormat::kFp8 && j <= kFp8KeyGroup) std::memcpy(&out.scales[slot], scales, 4);
    }
    float* to = out.values + block * j * 16;
    int64_t d = 0;
    for (; d + 16 <= j; d += 16) transpose16(row_major + d, padded, to + d * 16, 16);
    for (; d < j; ++d) {
      for (int64_t i = 0; i < 16; ++i) to[d * 16 + i] = row_major[i * padded + d];
    }
  }
}

template <>
void IndexKernels<Isa::PERIGEE_ISA>::score(const IndexRows& rows, IndexTile tile) {
  constexpr int kV = kTileVectors;
  for (int64_t first = 0; first < 64; first += 16 * kV) {
    for (int64_t r = 0; r < rows.rows; ++r) {
      const int64_t visible = rows.columns[r] - first;
      if (visible <= 0) continue;
      f32x16 sum[kV];
      score_row<kV>(rows.q + r * rows.heads * rows.width, rows.gates + r * rows.heads, rows.heads,
                    rows.width, tile.values + first * rows.width, sum);
      bf16* out = rows.scores + r * rows.score_stride + first;
      for (int v = 0; v < kV && visible > 16 * v; ++v) {
        store_bf16_part(out + 16 * v, mul(load(tile.scales + first + 16 * v), sum[v]),
                        visible - 16 * v);
      }
    }
  }
}

}  // namespace perigee::ops::cpu
