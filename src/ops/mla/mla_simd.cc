#include "ops/mla/mla_simd.h"

#include "num/dot_tile.h"
#include "num/record_simd.h"

namespace perigee::ops::cpu {
namespace {

using namespace simd;

constexpr int64_t kSlots = 64;
constexpr float kLane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Scores of M heads for the first n slots, -inf behind them: p [M][64].
template <int M>
PERIGEE_INLINE void score_heads(const MlaHeads& heads, int64_t h, const MlaTile& tile, int64_t n,
                                float* p) {
  constexpr int kV = kTileVectors;
  const f32x16 lane = load(kLane);
  for (int64_t first = 0; first < n; first += 16 * kV) {
    f32x16 dots[M][kV];
    dot_tile<M, kV>(heads.q + h * heads.width, heads.width, tile.columns + first * heads.width, 16,
                    heads.width * 16, heads.width, dots);
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < kV; ++v) {
        const int64_t at = first + 16 * v;
        const mask16 inside = less(lane, set1(static_cast<float>(n - at)));
        const f32x16 score = mul(dots[m][v], set1(heads.scale));
        store(p + m * kSlots + at, select(inside, score, set1(-INFINITY)));
      }
    }
  }
}

struct Weights {
  float old;    // what the gathered values are multiplied by
  float piece;  // the same of the piece's values
};

// Turns scores into exponentials relative to the piece's maximum and joins maximum and sum of one
// head.
PERIGEE_INLINE Weights softmax_head(float* p, int64_t n, float* max_of, float* sum_of) {
  f32x16 largest = set1(-INFINITY);
  for (int64_t i = 0; i < n; i += 16) largest = max(load(p + i), largest);
  const float piece_max = hmax(largest);
  const bool weightless =
      piece_max == -INFINITY;  // its exponentials are 0, or NaN where a score is
  const f32x16 base = set1(weightless ? 0.0f : piece_max);
  f32x16 total = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 e = exp(sub(load(p + i), base));
    store(p + i, e);
    total = add(total, e);
  }
  const float old_max = *max_of;
  const float joined = old_max > piece_max ? old_max : piece_max;
  const float reference = joined == -INFINITY ? 0.0f : joined;
  float ends[16] = {old_max - reference, weightless ? 0.0f : piece_max - reference};
  store(ends, exp(load(ends)));
  *max_of = joined;
  *sum_of = __builtin_fmaf(hsum(total), ends[1], *sum_of * ends[0]);
  return {ends[0], ends[1]};
}

// Columns [c, c + 16 V) of M heads: the piece's values joined to what was gathered.
template <int M, int V>
PERIGEE_INLINE void add_values(const MlaHeads& heads, int64_t h, const MlaTile& tile, int64_t n,
                               const float* p, const Weights* weights, int64_t c) {
  f32x16 values[M][V];
  dot_tile<M, V>(p, kSlots, tile.rows + c, tile.row_stride, 16, n, values);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      float* acc = heads.acc + (h + m) * heads.acc_stride + c + 16 * v;
      const f32x16 gathered = mul(set1(weights[m].old), load(acc));
      store(acc, fma(set1(weights[m].piece), values[m][v], gathered));
    }
  }
}

template <int M>
PERIGEE_INLINE void join_heads(const MlaHeads& heads, int64_t h, const MlaTile& tile, int64_t n) {
  alignas(64) float p[M * kSlots];
  Weights weights[M];
  score_heads<M>(heads, h, tile, n, p);
  for (int m = 0; m < M; ++m) {
    weights[m] = softmax_head(p + m * kSlots, n, heads.max + h + m, heads.sum + h + m);
  }
  constexpr int kV = kTileVectors;
  int64_t c = 0;
  for (; c + 16 * kV <= heads.c; c += 16 * kV) {
    add_values<M, kV>(heads, h, tile, n, p, weights, c);
  }
  for (; c < heads.c; c += 16) add_values<M, 1>(heads, h, tile, n, p, weights, c);
}

}  // namespace

template <>
void MlaKernels<Isa::PERIGEE_ISA>::queries(const bf16* q, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 16) store_part(out + i, load_bf16_part(q + i, n - i), n - i);
}

template <>
void MlaKernels<Isa::PERIGEE_ISA>::tile(LatentFormat format, const uint8_t* const* records,
                                        int64_t n, int64_t c, int64_t r, const MlaTile& out) {
  const int64_t width = c + r;
  for (int64_t block = 0; 16 * block < kSlots; ++block) {
    float* rows = out.rows + block * 16 * out.row_stride;
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t slot = block * 16 + i;
      float* row = rows + i * out.row_stride;
      int64_t d = 0;
      if (slot < n) {
        decode_latent(format, records[slot], c, r, row);
        d = width;
      }
      for (; d < out.row_stride; ++d) row[d] = 0.0f;
    }
    float* columns = out.columns + block * width * 16;
    int64_t d = 0;
    for (; d + 16 <= width; d += 16) transpose16(rows + d, out.row_stride, columns + d * 16, 16);
    for (; d < width; ++d) {
      for (int64_t i = 0; i < 16; ++i) columns[d * 16 + i] = rows[i * out.row_stride + d];
    }
  }
}

template <>
void MlaKernels<Isa::PERIGEE_ISA>::piece(const MlaHeads& heads, const MlaTile& tile, int64_t n) {
  const int64_t step = heads.heads > 0 ? tile_rows(heads.heads) : 1;
  int64_t h = 0;
  while (h < heads.heads) {
    const int64_t m = heads.heads - h < step ? heads.heads - h : step;
    with_tile_rows(m, [&]<int M>() { join_heads<M>(heads, h, tile, n); });
    h += m;
  }
}

template <>
void MlaKernels<Isa::PERIGEE_ISA>::finish(const MlaHeads& heads, bf16* out, float* lse) {
  for (int64_t h = 0; h < heads.heads; ++h) {
    const float sum = heads.sum[h];
    const bool empty = sum == 0.0f;
    float ends[16] = {sum};
    store(ends, log(load(ends)));
    lse[h] = empty ? -INFINITY : heads.max[h] + ends[0];
    for (int64_t c = 0; c < heads.c; c += 16) {
      const f32x16 value = div(load(heads.acc + h * heads.acc_stride + c), set1(sum));
      store_bf16_part(out + h * heads.c + c, empty ? zero() : value, heads.c - c);
    }
  }
}

}  // namespace perigee::ops::cpu
