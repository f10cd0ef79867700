#include "ops/kda/kda_simd.h"

#include "num/simd.h"

namespace perigee::ops {
namespace {

using namespace simd;

constexpr int64_t kChunk = 16;
constexpr bool kWide = Isa::PERIGEE_ISA == Isa::kAvx512;
// Rows that share a load of S. An FMA takes 4 cycles and two start in each, so at least 8 registers
// of sums must be under way; half of AVX-512's 32 (one a row) or 12 of AVX2's 16 (two a row) leave
// a margin.
constexpr int kTileRows = kWide ? 16 : 6;

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

// Asks for part `i` of `parts` of S while the rows are prepared: its columns are read block by
// block later, an order that the processor does not foresee.
void fetch_state(const KdaHead& h, int64_t i, int64_t parts) {
  const int64_t size = h.key_dim * h.value_dim;
  for (int64_t at = size * i / parts; at < size * (i + 1) / parts; at += 16) {
    __builtin_prefetch(h.state + at, 1, 2);
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

// products[row] = sum_i factors[row][i] block[i] for R rows and 16 columns: ascending FMA chains
// from zero.
template <int R>
PERIGEE_INLINE void state_tile(const KdaHead& h, int64_t row, int64_t column) {
  const float* factors = h.factors + row * h.key_pad;
  f32x16 sum[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = zero();
  for (int64_t i = 0; i < h.key_dim; ++i) {
    const f32x16 s = load(h.block + 16 * i);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = fma(set1(factors[r * h.key_pad + i]), s, sum[r]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) store(h.products + (row + r) * h.value_pad + column, sum[r]);
}

// The same chains for the two factors of one new row, over all columns: S is read once from memory,
// in the order in which it lies there. Partial sums rest in the products between panels of rows.
void stream_state(const KdaHead& h) {
  constexpr int64_t kPanel = 8;  // rows of S: 4 KiB of the published width, a page
  const int64_t full = h.value_dim / 16 * 16;
  for (int64_t v = 0; v < full; v += 16) {
    store(h.products + v, zero());
    store(h.products + h.value_pad + v, zero());
  }
  for (int64_t i = 0; i < h.key_dim; i += kPanel) {
    const int64_t end = i + kPanel < h.key_dim ? i + kPanel : h.key_dim;
    if (h.next != nullptr) {  // memory works on the next head during this one's arithmetic
      for (int64_t at = i * h.value_dim; at < end * h.value_dim; at += 16) {
        __builtin_prefetch(h.next + at, 0, 2);
      }
    }
    for (int64_t v = 0; v < full; v += 16) {
      f32x16 first = load(h.products + v);
      f32x16 second = load(h.products + h.value_pad + v);
      for (int64_t j = i; j < end; ++j) {
        const f32x16 s = load(h.state + j * h.value_dim + v);
        first = fma(set1(h.factors[j]), s, first);
        second = fma(set1(h.factors[h.key_pad + j]), s, second);
      }
      store(h.products + v, first);
      store(h.products + h.value_pad + v, second);
    }
  }
}

// products = factors times S. Several new rows share copies of blocks of columns that stay in the
// first cache.
void multiply_state(const KdaHead& h, const Chunk& chunk) {
  const int64_t rows = 2 * chunk.count;
  int64_t v = 0;
  if (chunk.count == 1) {
    stream_state(h);
    v = h.value_dim / 16 * 16;
  }
  for (; v < h.value_dim; v += 16) {
    for (int64_t i = 0; i < h.key_dim; ++i) {
      store(h.block + 16 * i, load_part(h.state + i * h.value_dim + v, h.value_dim - v));
    }
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
      state_tile<kTileRows>(h, r, v);
    }
    for (; r + 4 <= rows; r += 4) state_tile<4>(h, r, v);
    for (; r < rows; r += 2) state_tile<2>(h, r, v);
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
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) {
      s[j] = mul(set1(h.decay[i + j]), load_part(h.state + (i + j) * h.value_dim + v, n));
    }
    for (int64_t c = 0; c < kChunk; ++c) {
      const f32x16 u = load(h.open_u + c * h.value_pad + v);
      const float* d = h.decayed + c * h.key_pad + i;
#pragma GCC unroll 16
      for (int j = 0; j < N; ++j) s[j] = fma(set1(d[j]), u, s[j]);
    }
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) store_part(h.state + (i + j) * h.value_dim + v, s[j], n);
  }
}

void advance_state(const KdaHead& h) {
  int64_t i = 0;
  for (; i + kTileRows <= h.key_dim; i += kTileRows) advance_rows<kTileRows>(h, i);
  for (; i + 2 <= h.key_dim; i += 2) advance_rows<2>(h, i);
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
      if (chunk.count > 1) fetch_state(h, i, chunk.count);
      prepare_row(h, chunk, i, rate);
      correlate(h, chunk, i);
    }
    multiply_state(h, chunk);
    solve(h, chunk);
    if (chunk.first + chunk.count == kChunk) advance_state(h);
  }
}

}  // namespace perigee::ops
