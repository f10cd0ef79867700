#include "ops/moe_gemm/moe_gemm_simd.h"

#include "num/simd.h"
#include "ops/gemm/gemm_micro.h"

namespace perigee::ops::cpu {
namespace {

constexpr int64_t kBlockCodes = 256;
constexpr int64_t kGroupCodes = 64;  // 16 rows x 8 columns

// Eight columns of kLanes rows; column() gives one column's codes times 2^25.
#if defined(__AVX512F__)

struct Codes {
  __m512i v;
  __m512 table;
  PERIGEE_INLINE explicit Codes(const uint8_t* p)
      : v(_mm512_loadu_si512(p)),
        table(_mm512_mul_ps(_mm512_setr_ps(0.0f, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f,
                                           -2, -3, -4, -6),
                            _mm512_set1_ps(0x1p25f))) {}
  // The permutation looks at the low four bits of a lane only.
  template <int kColumn>
  PERIGEE_INLINE Vec column() const {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4 * kColumn), table);
  }
};
PERIGEE_INLINE Vec load_scales(const uint8_t* p) {
  const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
  const __m512i bits = _mm512_slli_epi32(e, 23);
  return _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, nan, bits, _mm512_set1_epi32(0x400000)));
}
PERIGEE_INLINE Vec vec_mul(Vec a, Vec b) {
  return _mm512_mul_ps(a, b);
}
PERIGEE_INLINE void store_pairs(uint8_t* p, Vec even, Vec odd) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  const __m512i high =
      _mm512_and_si512(_mm512_castps_si512(odd), _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  _mm512_storeu_si512(p, _mm512_or_si512(low, high));
}

#elif defined(__AVX2__)

struct Codes {
  __m256i even;  // four bytes a lane: twice the value of columns 0, 2, 4, 6
  __m256i odd;
  PERIGEE_INLINE explicit Codes(const uint8_t* p) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    even = _mm256_shuffle_epi8(table, _mm256_and_si256(v, nibble));
    odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble));
  }
  // Moves one byte of each lane to its top, zeros below: 2^24 times the signed byte.
  template <int kByte>
  static PERIGEE_INLINE __m256i top(__m256i v) {
    if constexpr (kByte == 0) return _mm256_slli_epi32(v, 24);
    if constexpr (kByte == 3) {
      return _mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xff000000u)));
    }
    constexpr char b = kByte;
    return _mm256_shuffle_epi8(
        v,
        _mm256_setr_epi8(-1, -1, -1, b, -1, -1, -1, b + 4, -1, -1, -1, b + 8, -1, -1, -1, b + 12,
                         -1, -1, -1, b, -1, -1, -1, b + 4, -1, -1, -1, b + 8, -1, -1, -1, b + 12));
  }
  template <int kColumn>
  PERIGEE_INLINE Vec column() const {
    return _mm256_cvtepi32_ps(top<kColumn / 2>(kColumn % 2 == 0 ? even : odd));
  }
};
PERIGEE_INLINE Vec load_scales(const uint8_t* p) {
  const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i nan = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
  const __m256i quiet = _mm256_and_si256(nan, _mm256_set1_epi32(0x400000));
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(e, 23), quiet));
}
PERIGEE_INLINE Vec vec_mul(Vec a, Vec b) {
  return _mm256_mul_ps(a, b);
}
PERIGEE_INLINE void store_pairs(uint8_t* p, Vec even, Vec odd) {
  const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(even), 16);
  const __m256i high =
      _mm256_and_si256(_mm256_castps_si256(odd), _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_or_si256(low, high));
}

#else

struct Codes {
  const uint8_t* p;
  PERIGEE_INLINE explicit Codes(const uint8_t* codes) : p(codes) {}
  template <int kColumn>
  PERIGEE_INLINE Vec column() const {
    constexpr float kTwice[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    return simd::each([&](int row) {
      const int code = p[row * 4 + kColumn / 2] >> (kColumn % 2 * 4) & 15;
      return (code < 8 ? kTwice[code] : -kTwice[code - 8]) * 0x1p24f;
    });
  }
};
PERIGEE_INLINE Vec load_scales(const uint8_t* p) {
  return simd::each([&](int row) {
    return p[row] == 255 ? NAN : simd::as_float(static_cast<int32_t>(p[row]) << 23);
  });
}
PERIGEE_INLINE Vec vec_mul(Vec a, Vec b) {
  return simd::mul(a, b);
}
PERIGEE_INLINE void store_pairs(uint8_t* p, Vec even, Vec odd) {
  const simd::i32x16 low = simd::shr<16>(simd::bits(even));
  const simd::i32x16 high =
      simd::andi(simd::bits(odd), simd::set1i(static_cast<int32_t>(0xffff0000u)));
  const simd::i32x16 pairs = simd::ori(low, high);
  std::memcpy(p, pairs.v, sizeof(pairs.v));
}

#endif

// One group of 8 columns into the chains of R rows.
template <int R, int H, int kPair = 0>
PERIGEE_INLINE void add_pairs(const Codes (&codes)[H], const RowPointers<R>& x, Vec (&even)[R][H],
                              Vec (&odd)[R][H]) {
  Vec we[H];
  Vec wo[H];
  for (int h = 0; h < H; ++h) {
    we[h] = codes[h].template column<2 * kPair>();
    wo[h] = codes[h].template column<2 * kPair + 1>();
  }
  for (int r = 0; r < R; ++r) {
    const Vec xe = x.broadcast(r, 2 * kPair);
    for (int h = 0; h < H; ++h) even[r][h] = vec_fma(xe, we[h], even[r][h]);
    const Vec xo = x.broadcast(r, 2 * kPair + 1);
    for (int h = 0; h < H; ++h) odd[r][h] = vec_fma(xo, wo[h], odd[r][h]);
  }
  if constexpr (kPair < 3) add_pairs<R, H, kPair + 1>(codes, x, even, odd);
}

// Adds B neighbouring blocks to the accumulators, in order. Their chains run side by side: those of one block alone would
// wait for the latency of the multiply-adds.
template <int R, int H, int B>
PERIGEE_INLINE void add_blocks(const float* x, int64_t x_stride, const uint8_t* codes,
                               const uint8_t* scales, Vec (&acc)[R][H]) {
  Vec even[B][R][H];
  Vec odd[B][R][H];
  for (int b = 0; b < B; ++b) {
    for (int r = 0; r < R; ++r) {
      for (int h = 0; h < H; ++h) even[b][r][h] = odd[b][r][h] = vec_zero();
    }
  }
  for (int g = 0; g < 4; ++g) {
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      const uint8_t* const p = codes + b * kBlockCodes + g * kGroupCodes;
      const RowPointers<R> rows(x + b * 32 + g * 8, x_stride);
      prefetch(p + kPrefetchBytes);
      if constexpr (H == 2) {
        const Codes both[2] = {Codes(p), Codes(p + kLanes * 4)};
        add_pairs<R, H>(both, rows, even[b], odd[b]);
      } else {
        const Codes one[1] = {Codes(p)};
        add_pairs<R, H>(one, rows, even[b], odd[b]);
      }
    }
  }
  for (int b = 0; b < B; ++b) {
    for (int h = 0; h < H; ++h) {
      const Vec scale = load_scales(scales + b * 16 + h * kLanes);
      for (int r = 0; r < R; ++r) {
        acc[r][h] = vec_fma(scale, vec_add(even[b][r][h], odd[b][r][h]), acc[r][h]);
      }
    }
  }
}

// R rows times H vectors of a panel.
template <int R, int H>
PERIGEE_INLINE void stream_tile(const float* x, int64_t x_stride, const uint8_t* codes,
                                const uint8_t* scales, int64_t blocks, bool first, float* totals) {
  constexpr int kTogether = 4 / (R * H) > 1 ? 4 / (R * H) : 1;  // eight chains, or one block's
  Vec acc[R][H];
  for (int r = 0; r < R; ++r) {
    for (int h = 0; h < H; ++h) acc[r][h] = vec_zero();
  }
  int64_t b = 0;
  for (; b + kTogether <= blocks; b += kTogether) {
    add_blocks<R, H, kTogether>(x + b * 32, x_stride, codes + b * kBlockCodes, scales + b * 16,
                                acc);
  }
  for (; b < blocks; ++b) {
    add_blocks<R, H, 1>(x + b * 32, x_stride, codes + b * kBlockCodes, scales + b * 16, acc);
  }
  for (int r = 0; r < R; ++r) {
    for (int h = 0; h < H; ++h) {
      float* const to = totals + r * 16 + h * kLanes;
      vec_store(to, first ? acc[r][h] : vec_add(vec_load(to), acc[r][h]));
    }
  }
}

template <int R>
void stream_rows(const float* x, int64_t x_stride, const uint8_t* codes, const uint8_t* scales,
                 int64_t blocks, bool first, float* totals) {
  if constexpr (kHalves == 1 || R == 1) {
    stream_tile<R, kHalves>(x, x_stride, codes, scales, blocks, first, totals);
  } else {
    for (int h = 0; h < kHalves; ++h) {
      stream_tile<R, 1>(x, x_stride, codes + h * kLanes * 4, scales + h * kLanes, blocks, first,
                        totals + h * kLanes);
    }
  }
}

template <int kPair = 0>
PERIGEE_INLINE void unpack_pairs(const Codes& codes, Vec factor, uint8_t* pairs) {
  const Vec even = vec_mul(codes.template column<2 * kPair>(), factor);
  const Vec odd = vec_mul(codes.template column<2 * kPair + 1>(), factor);
  store_pairs(pairs + kPair * kPairBytes, even, odd);
  if constexpr (kPair < 3) unpack_pairs<kPair + 1>(codes, factor, pairs);
}

}  // namespace

template <>
void moe_stream<Isa::PERIGEE_ISA>(const float* x, int64_t x_stride, int64_t rows,
                                  const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                                  bool first, float* totals) {
  switch (rows) {
    case 1:
      return stream_rows<1>(x, x_stride, codes, scales, blocks, first, totals);
    case 2:
      return stream_rows<2>(x, x_stride, codes, scales, blocks, first, totals);
    case 3:
      return stream_rows<3>(x, x_stride, codes, scales, blocks, first, totals);
    default:
      return stream_rows<4>(x, x_stride, codes, scales, blocks, first, totals);
  }
}

template <>
void moe_unpack<Isa::PERIGEE_ISA>(const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                                  bool dequantise, uint8_t* pairs, float* factors) {
  const float one = 1.0f;
  const float unshift = kMoeFactor;
  for (int64_t b = 0; b < blocks; ++b) {
    for (int h = 0; h < kHalves; ++h) {
      const Vec scale = load_scales(scales + b * 16 + h * kLanes);
      if (!dequantise) vec_store(factors + b * 16 + h * kLanes, scale);
      const Vec factor = dequantise ? vec_mul(scale, vec_set1(&unshift)) : vec_set1(&one);
      for (int g = 0; g < 4; ++g) {
        const Codes group(codes + b * kBlockCodes + g * kGroupCodes + h * kLanes * 4);
        unpack_pairs(group, factor, pairs + b * kBlockBytes + g * 4 * kPairBytes + h * kLanes * 4);
      }
    }
  }
}

template <>
void moe_scaled<Isa::PERIGEE_ISA>(const float* x, int64_t x_stride, int64_t rows,
                                  const uint8_t* pairs, int64_t blocks, const float* factors,
                                  bool first, float* totals) {
  micro_segment<true>(x, x_stride, rows, pairs, blocks, factors, first, totals);
}

}  // namespace perigee::ops::cpu
