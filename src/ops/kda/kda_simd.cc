#include "ops/kda/kda_simd.h"

#include "num/simd.h"

namespace perigee::ops {
namespace {

using namespace simd;

constexpr int64_t kChunk = 16;
constexpr bool kWide = Isa::PERIGEE_ISA == Isa::kAvx512;
// Rows of factors that share a load of S: 8 accumulators of 16 lanes need half of the AVX-512
// registers, 4 half of AVX2's.
constexpr int kTileRows = kWide ? 8 : 4;

// Scalars of the new rows of a chunk.
struct Chunk {
  int64_t row;    // of the sequence: the first new row
  int64_t first;  // its place in the chunk
  int64_t count;  // new rows
  float beta[kChunk];
  float a[kChunk][kChunk];  // A_rc, c < r
  float m[kChunk][kChunk];  // M_rc, c <= r
};

// Zeroes the lanes from n on.
PERIGEE_INLINE f32x16 keep(f32x16 x, int64_t n) {
  if (n >= 16) return x;
  float lanes[16];
  store(lanes, x);
  return load_part(lanes, n);
}

PERIGEE_INLINE f32x16 inverse_length(const bf16* x, int64_t n) {
  f32x16 square = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 v = load_bf16_part(x + i, n - i);
    square = fma(v, v, square);
  }
  return div(set1(1.0f), simd::sqrt(add(set1(hsum(square)), set1(1e-6f))));
}

PERIGEE_INLINE f32x16 log_decay(const KdaHead& h, f32x16 rate, f32x16 x) {
  if (h.bounded) return mul(set1(h.lower_bound), sigmoid(mul(rate, x)));
  const f32x16 softplus = add(max(x, zero()), log(add(set1(1.0f), exp(neg(abs(x))))));
  return neg(mul(rate, softplus));
}

// decay_c and D up to the row before the chunk's first new one, from the open rows.
void restore(const KdaHead& h, int64_t first) {
  for (int64_t i = 0; i < h.key_pad; i += 16) {
    f32x16 d = set1(1.0f);
    for (int64_t r = 0; r < first; ++r) d = mul(d, load(h.open_alpha + r * h.key_pad + i));
    store(h.decay + i, d);
    for (int64_t c = 0; c < first; ++c) {
      f32x16 x = load(h.open_k + c * h.key_pad + i);
      for (int64_t r = c + 1; r < first; ++r) x = mul(x, load(h.open_alpha + r * h.key_pad + i));
      store(h.decayed + c * h.key_pad + i, x);
    }
  }
}

// Normalised k, alpha and the factors of one new row. The normalised q stays in its factors' place
// until `correlate`.
void prepare_row(const KdaHead& h, Chunk& chunk, int64_t i, f32x16 rate) {
  const int64_t row = chunk.row + i;
  const int64_t r = chunk.first + i;
  const bf16* q = h.q + row * h.q_stride;
  const bf16* k = h.k + row * h.k_stride;
  const bf16* z = h.z + row * h.z_stride;
  const f32x16 k_scale = inverse_length(k, h.key_dim);
  const f32x16 q_scale = inverse_length(q, h.key_dim);
  for (int64_t j = 0; j < h.key_pad; j += 16) {
    const int64_t n = h.key_dim - j;
    const f32x16 x = add(load_bf16_part(z + j, n), load_part(h.dt_bias + j, n));
    store(h.open_alpha + r * h.key_pad + j, keep(exp(log_decay(h, rate, x)), n));
    store(h.open_k + r * h.key_pad + j, keep(mul(load_bf16_part(k + j, n), k_scale), n));
    store(h.factors + (2 * i + 1) * h.key_pad + j,
          keep(mul(mul(load_bf16_part(q + j, n), q_scale), set1(h.scale)), n));
  }
  float lanes[16];
  store(lanes, sigmoid(load_bf16_part(h.b + row * h.b_stride, 1)));
  chunk.beta[r] = lanes[0];
}

// One more decay of the earlier rows' keys, the row's dots with them, and its factors.
void correlate(const KdaHead& h, Chunk& chunk, int64_t i) {
  const int64_t r = chunk.first + i;
  const float* k = h.open_k + r * h.key_pad;
  const float* alpha = h.open_alpha + r * h.key_pad;
  float* k_factor = h.factors + 2 * i * h.key_pad;
  float* q = k_factor + h.key_pad;
  for (int64_t c = 0; c < r; ++c) {
    float* d = h.decayed + c * h.key_pad;
    f32x16 a = zero();
    f32x16 m = zero();
    for (int64_t j = 0; j < h.key_pad; j += 16) {
      const f32x16 x = mul(load(d + j), load(alpha + j));
      store(d + j, x);
      a = fma(load(k + j), x, a);
      m = fma(load(q + j), x, m);
    }
    chunk.a[r][c] = hsum(a);
    chunk.m[r][c] = hsum(m);
  }
  f32x16 m = zero();
  for (int64_t j = 0; j < h.key_pad; j += 16) {
    const f32x16 x = load(k + j);
    m = fma(load(q + j), x, m);
    store(h.decayed + r * h.key_pad + j, x);
    const f32x16 d = mul(load(h.decay + j), load(alpha + j));
    store(h.decay + j, d);
    store(k_factor + j, mul(x, d));
    store(q + j, mul(load(q + j), d));
  }
  chunk.m[r][r] = hsum(m);
}

// out[row] = sum_i factors[row][i] s[i] for R rows and B blocks of 16 columns: ascending FMA chains
// from zero.
template <int R, int B>
PERIGEE_INLINE void state_tile(const float* factors, int64_t factor_stride, const float* s,
                               int64_t s_stride, int64_t n, float* out, int64_t out_stride) {
  f32x16 sum[R][B];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) sum[r][b] = zero();
  }
  for (int64_t i = 0; i < n; ++i) {
    f32x16 x[B];
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) x[b] = load(s + i * s_stride + 16 * b);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const f32x16 f = set1(factors[r * factor_stride + i]);
#pragma GCC unroll 8
      for (int b = 0; b < B; ++b) sum[r][b] = fma(f, x[b], sum[r][b]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) store(out + r * out_stride + 16 * b, sum[r][b]);
  }
}

// products = factors times S. One new row reads S in place; more copy a block of columns that stays
// in the first cache.
void multiply_state(const KdaHead& h, const Chunk& chunk) {
  constexpr int kBlocks =
      kWide ? 4 : 2;  // columns of one new row: enough chains to hide an FMA's latency
  const int64_t rows = 2 * chunk.count;
  int64_t v = 0;
  if (chunk.count == 1) {
    for (; v + 16 * kBlocks <= h.value_dim; v += 16 * kBlocks) {
      state_tile<2, kBlocks>(h.factors, h.key_pad, h.state + v, h.value_dim, h.key_dim,
                             h.products + v, h.value_pad);
    }
  }
  for (; v < h.value_dim; v += 16) {
    for (int64_t i = 0; i < h.key_dim; ++i) {
      store(h.block + 16 * i, load_part(h.state + i * h.value_dim + v, h.value_dim - v));
    }
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
      state_tile<kTileRows, 1>(h.factors + r * h.key_pad, h.key_pad, h.block, 16, h.key_dim,
                               h.products + r * h.value_pad + v, h.value_pad);
    }
    for (; r < rows; r += 2) {
      state_tile<2, 1>(h.factors + r * h.key_pad, h.key_pad, h.block, 16, h.key_dim,
                       h.products + r * h.value_pad + v, h.value_pad);
    }
  }
}

// u and o of the new rows; columns are independent, rows need the u before them.
void solve(const KdaHead& h, const Chunk& chunk) {
  for (int64_t i = 0; i < chunk.count; ++i) {
    const int64_t r = chunk.first + i;
    const bf16* v = h.v + (chunk.row + i) * h.v_stride;
    float* out = h.out + (chunk.row + i) * h.out_stride;
    const f32x16 beta = set1(chunk.beta[r]);
    for (int64_t j = 0; j < h.value_pad; j += 16) {
      const int64_t n = h.value_dim - j;
      const float* product = h.products + 2 * i * h.value_pad + j;
      f32x16 earlier = zero();
      f32x16 o = zero();
      for (int64_t c = 0; c < r; ++c) {
        const f32x16 u = load(h.open_u + c * h.value_pad + j);
        earlier = fma(set1(chunk.a[r][c]), u, earlier);
        o = fma(set1(chunk.m[r][c]), u, o);
      }
      const f32x16 x = mul(beta, sub(load_bf16_part(v + j, n), load(product)));
      const f32x16 u = keep(fma(neg(beta), earlier, x), n);
      store(h.open_u + r * h.value_pad + j, u);
      o = fma(set1(chunk.m[r][r]), u, o);
      store_part(out + j, add(load(product + h.value_pad), o), n);
    }
  }
}

// S <- D S + sum_c decay_c u_c^T for N rows of S from row i.
template <int N>
PERIGEE_INLINE void advance_rows(const KdaHead& h, int64_t i) {
  for (int64_t v = 0; v < h.value_dim; v += 16) {
    const int64_t n = h.value_dim - v;
    f32x16 s[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      s[j] = mul(set1(h.decay[i + j]), load_part(h.state + (i + j) * h.value_dim + v, n));
    }
    for (int64_t c = 0; c < kChunk; ++c) {
      const f32x16 u = load(h.open_u + c * h.value_pad + v);
      const float* d = h.decayed + c * h.key_pad + i;
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) s[j] = fma(set1(d[j]), u, s[j]);
    }
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) store_part(h.state + (i + j) * h.value_dim + v, s[j], n);
  }
}

void advance_state(const KdaHead& h) {
  int64_t i = 0;
  for (; i + kTileRows <= h.key_dim; i += kTileRows) advance_rows<kTileRows>(h, i);
  for (; i < h.key_dim; ++i) advance_rows<1>(h, i);
}

}  // namespace

template <>
void kda_head<Isa::PERIGEE_ISA>(const KdaHead& h) {
  const f32x16 rate = exp(set1(h.a_log));
  Chunk chunk;
  for (int64_t row = 0; row < h.rows; row += chunk.count) {
    chunk.row = row;
    chunk.first = (h.position + row) % kChunk;
    chunk.count = kChunk - chunk.first < h.rows - row ? kChunk - chunk.first : h.rows - row;
    restore(h, chunk.first);
    for (int64_t i = 0; i < chunk.count; ++i) {
      prepare_row(h, chunk, i, rate);
      correlate(h, chunk, i);
    }
    multiply_state(h, chunk);
    solve(h, chunk);
    if (chunk.first + chunk.count == kChunk) advance_state(h);
  }
}

}  // namespace perigee::ops
