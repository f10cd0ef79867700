// What    The record codec on sixteen lanes: the bits of num/record_codec.h, for the vector files
//         of operations.
// Owner   num. Included only by files that cmake compiles once per set (PERIGEE_ISA).
// Threads Pure functions.
// Errors  None.
// Source  num/formats.h and num/records.h say what every code means.
#pragma once

#include "num/formats.h"
#include "num/records.h"
#include "num/simd.h"

namespace perigee::simd {
namespace {

PERIGEE_INLINE i32x16 selecti(mask16 m, i32x16 a, i32x16 b) {
  return bits(select(m, from_bits(a), from_bits(b)));
}

PERIGEE_INLINE i32x16 e4m3_codes(f32x16 x) {
  const i32x16 sign = andi(shr<24>(bits(x)), set1i(0x80));
  const f32x16 a = min(abs(x), set1(kE4m3Max));
  const i32x16 lsb = andi(shr<20>(bits(a)), set1i(1));
  const i32x16 rounded = addi(bits(a), addi(lsb, set1i(0x7ffff)));
  const i32x16 normal = subi(shr<20>(rounded), set1i(120 << 3));
  const i32x16 small = subi(bits(add(a, set1(0x1p14f))), set1i(0x46800000));
  i32x16 code = selecti(less(a, set1(0x1p-6f)), small, normal);
  code = selecti(is_nan(x), set1i(0x7f), code);
  return ori(code, sign);
}

// 1 where the lane passes, else 0, added to sum.
PERIGEE_INLINE i32x16 count(mask16 m, i32x16 sum) {
  return addi(sum, selecti(m, set1i(1), set1i(0)));
}

// Codes of |x| / s with the sign of x.
PERIGEE_INLINE i32x16 e2m1_codes(f32x16 x, float s) {
  const f32x16 a = div(abs(x), set1(s));
  i32x16 code = set1i(0);
  code = count(less(set1(0.25f), a), code);
  code = count(less(set1(1.25f), a), code);
  code = count(less(set1(2.5f), a), code);
  code = count(less(set1(5.0f), a), code);
  // a >= bound: not below it, and not NaN.
  const i32x16 number = selecti(is_nan(a), set1i(0), set1i(3));
  i32x16 below = set1i(0);
  below = count(less(a, set1(0.75f)), below);
  below = count(less(a, set1(1.75f)), below);
  below = count(less(a, set1(3.5f)), below);
  code = addi(code, subi(number, below));
  return ori(code, andi(shr<28>(bits(x)), set1i(8)));
}

#if defined(__AVX2__)

PERIGEE_INLINE f32x16 join(__m256 low, __m256 high) {
#if defined(__AVX512F__)
  return {_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1)};
#else
  return {low, high};
#endif
}

// The low bytes of sixteen integers below 256.
PERIGEE_INLINE __m128i narrow(i32x16 code) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_epi8(code.v);
#else
  const __m256i half = _mm256_permute4x64_epi64(_mm256_packus_epi32(code.lo, code.hi), 0xd8);
  return _mm_packus_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
#endif
}

PERIGEE_INLINE void store16(uint8_t* p, i32x16 code) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(code));
}

// Sixteen codes as eight bytes, the even element in the low nibble.
PERIGEE_INLINE void store_nibbles(uint8_t* p, i32x16 code) {
  const __m128i pairs = _mm_maddubs_epi16(narrow(code), _mm_set1_epi16(0x1001));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(pairs, pairs));
}

// An e4m3 code is a half-precision number of the same fields, 2^8 too small; denormals convert
// exactly.
PERIGEE_INLINE f32x16 load_e4m3(const uint8_t* p) {
  const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8);
  const __m256i a = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x7f)), 7);
  const __m256i nan = _mm256_cmpeq_epi16(a, _mm256_set1_epi16(0x3f80));
  const __m256i half = _mm256_or_si256(_mm256_blendv_epi8(a, _mm256_set1_epi16(0x7e00), nan), sign);
  const f32x16 x = join(_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
                        _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)));
  return mul(x, set1(256.0f));
}

// Values of sixteen e2m1 codes: both bytes of their BF16 patterns come from tables.
PERIGEE_INLINE f32x16 load_e2m1(const uint8_t* p) {
  const __m128i both = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i code =
      _mm_unpacklo_epi8(_mm_and_si128(both, mask), _mm_and_si128(_mm_srli_epi16(both, 4), mask));
  const __m128i upper = _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41,
                                      -0x41, -0x41, -0x40, -0x40, -0x40, -0x40);
  const __m128i lower = _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40,
                                      0, 0x40, -0x80, -0x40);
  const __m128i u = _mm_shuffle_epi8(upper, code);
  const __m128i l = _mm_shuffle_epi8(lower, code);
  const __m256i first = _mm256_cvtepu16_epi32(_mm_unpacklo_epi8(l, u));
  const __m256i second = _mm256_cvtepu16_epi32(_mm_unpackhi_epi8(l, u));
  return join(_mm256_castsi256_ps(_mm256_slli_epi32(first, 16)),
              _mm256_castsi256_ps(_mm256_slli_epi32(second, 16)));
}

#else

PERIGEE_INLINE void store16(uint8_t* p, i32x16 code) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(code.v[i]);
}
PERIGEE_INLINE void store_nibbles(uint8_t* p, i32x16 code) {
  for (int i = 0; i < 8; ++i) p[i] = static_cast<uint8_t>(code.v[2 * i] | code.v[2 * i + 1] << 4);
}
PERIGEE_INLINE f32x16 load_e4m3(const uint8_t* p) {
  return each([&](int i) { return from_e4m3(p[i]); });
}
PERIGEE_INLINE f32x16 load_e2m1(const uint8_t* p) {
  return each([&](int i) {
    return from_e2m1(static_cast<uint8_t>(i % 2 == 0 ? p[i / 2] & 15 : p[i / 2] >> 4));
  });
}

#endif

// The first n of sixteen codes as bytes.
PERIGEE_INLINE void store_bytes(uint8_t* p, i32x16 code, int64_t n) {
  if (n >= 16) return store16(p, code);
  uint8_t buffer[16];
  store16(buffer, code);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}
PERIGEE_INLINE f32x16 load_e4m3_part(const uint8_t* p, int64_t n) {
  if (n >= 16) return load_e4m3(p);
  uint8_t buffer[16] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load_e4m3(buffer);
}

// Running largest magnitude of a group; NaN is remembered, whatever comes later.
struct Amax {
  f32x16 largest = zero();
  f32x16 nan = zero();
};
PERIGEE_INLINE void take(Amax& m, f32x16 x) {
  m.largest = max(abs(x), m.largest);
  m.nan = select(is_nan(x), set1(1.0f), m.nan);
}
PERIGEE_INLINE float value(const Amax& m) {
  return hmax(m.nan) > 0.0f ? float_from_bits(0x7fc00000u) : hmax(m.largest);
}

PERIGEE_INLINE void encode_bf16(const bf16* x, int64_t n, uint8_t* out) {
  bf16* half = reinterpret_cast<bf16*>(out);  // records of this format begin at even addresses
  for (int64_t i = 0; i < n; i += 16) {
    store_bf16_part(half + i, load_bf16_part(x + i, n - i), n - i);
  }
}
PERIGEE_INLINE void encode_e4m3(const bf16* x, int64_t n, uint8_t* out) {
  for (int64_t i = 0; i < n; i += 16) {
    store_bytes(out + i, e4m3_codes(load_bf16_part(x + i, n - i)), n - i);
  }
}
PERIGEE_INLINE void encode_nvfp4(const bf16* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  for (int64_t g = 0; g < n; g += kNvfp4Group) {
    const f32x16 v = load_bf16(x + g);
    Amax m;
    take(m, v);
    const uint8_t scale = to_e4m3(value(m) / kE2m1Max);
    scales[g / kNvfp4Group] = scale;
    store_nibbles(codes + g / 2, scale == 0 ? set1i(0) : e2m1_codes(v, from_e4m3(scale)));
  }
}

// One latent record; the formats are those of the CPU device (not kF64).
PERIGEE_INLINE void encode_latent(LatentFormat format, const bf16* latent, int64_t c,
                                  const bf16* rope, int64_t r, uint8_t* out) {
  switch (format) {
    case LatentFormat::kF64:
      break;
    case LatentFormat::kBf16:
      encode_bf16(latent, c, out);
      encode_bf16(rope, r, out + 2 * c);
      break;
    case LatentFormat::kFp8:
      encode_e4m3(latent, c, out);
      encode_e4m3(rope, r, out + c);
      break;
    case LatentFormat::kNvfp4:
      encode_nvfp4(latent, c, out, out + c / 2 + r);
      encode_e4m3(rope, r, out + c / 2);
      break;
  }
}

PERIGEE_INLINE void encode_key(KeyFormat format, const bf16* x, int64_t j, uint8_t* values,
                               uint8_t* scales) {
  switch (format) {
    case KeyFormat::kF64:
      break;
    case KeyFormat::kBf16:
      encode_bf16(x, j, values);
      break;
    case KeyFormat::kFp8:
      for (int64_t g = 0; g < j; g += kFp8KeyGroup) {
        const int64_t n = j - g < kFp8KeyGroup ? j - g : kFp8KeyGroup;
        Amax m;
        for (int64_t i = 0; i < n; i += 16) take(m, load_bf16_part(x + g + i, n - i));
        const float amax = value(m);
        const float scale = amax < kFp8KeyAmaxFloor ? kFp8KeyAmaxFloor / kE4m3Max
                            : amax == amax          ? amax / kE4m3Max
                                                    : amax;
        std::memcpy(scales + g / kFp8KeyGroup * 4, &scale, 4);
        for (int64_t i = 0; i < n; i += 16) {
          const f32x16 v = div(load_bf16_part(x + g + i, n - i), set1(scale));
          store_bytes(values + g + i, e4m3_codes(v), n - i);
        }
      }
      break;
    case KeyFormat::kMxfp4:
      for (int64_t g = 0; g < j; g += kMxfp4Group) {
        const f32x16 a = load_bf16(x + g);
        const f32x16 b = load_bf16(x + g + 16);
        Amax m;
        take(m, a);
        take(m, b);
        const uint8_t scale = mxfp4_scale(value(m));
        scales[g / kMxfp4Group] = scale;
        store_nibbles(values + g / 2, e2m1_codes(a, from_e8m0(scale)));
        store_nibbles(values + g / 2 + 8, e2m1_codes(b, from_e8m0(scale)));
      }
      break;
  }
}

PERIGEE_INLINE void decode_bf16(const uint8_t* in, int64_t n, float* x) {
  const bf16* half = reinterpret_cast<const bf16*>(in);
  for (int64_t i = 0; i < n; i += 16) store_part(x + i, load_bf16_part(half + i, n - i), n - i);
}
PERIGEE_INLINE void decode_e4m3(const uint8_t* in, int64_t n, float* x) {
  for (int64_t i = 0; i < n; i += 16) store_part(x + i, load_e4m3_part(in + i, n - i), n - i);
}

// C + r values of one latent record.
PERIGEE_INLINE void decode_latent(LatentFormat format, const uint8_t* in, int64_t c, int64_t r,
                                  float* x) {
  switch (format) {
    case LatentFormat::kF64:
      break;
    case LatentFormat::kBf16:
      decode_bf16(in, c + r, x);
      break;
    case LatentFormat::kFp8:
      decode_e4m3(in, c + r, x);
      break;
    case LatentFormat::kNvfp4:
      for (int64_t g = 0; g < c; g += kNvfp4Group) {
        const float scale = from_e4m3(in[c / 2 + r + g / kNvfp4Group]);
        store(x + g, mul(load_e2m1(in + g / 2), set1(scale)));
      }
      decode_e4m3(in + c / 2, r, x + c);
      break;
  }
}

// n e4m3 codes as BF16, which holds every one of them.
PERIGEE_INLINE void widen_e4m3(const uint8_t* in, int64_t n, bf16* out) {
  int64_t i = 0;
#if defined(__AVX512BW__)
  const __m512i denormal = _mm512_castsi128_si512(  // eighths of 2^-6
      _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  for (; i + 32 <= n; i += 32) {
    const __m512i code =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i)));
    const __m512i a = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
    const __m512i sign = _mm512_slli_epi16(_mm512_xor_si512(code, a), 8);
    __m512i x = _mm512_add_epi16(_mm512_slli_epi16(a, 4), _mm512_set1_epi16(120 << 7));
    x = _mm512_mask_permutexvar_epi16(x, _mm512_cmplt_epi16_mask(a, _mm512_set1_epi16(8)), a,
                                      denormal);
    x = _mm512_mask_mov_epi16(x, _mm512_cmpeq_epi16_mask(a, _mm512_set1_epi16(0x7f)),
                              _mm512_set1_epi16(0x7fc0));
    _mm512_storeu_si512(out + i, _mm512_or_si512(x, sign));
  }
#endif
  for (; i < n; i += 16) store_bf16_part(out + i, load_e4m3_part(in + i, n - i), n - i);
}

// J values of one key as BF16, exact in every format; the scales of FP8 stay out.
PERIGEE_INLINE void widen_key(KeyFormat format, const uint8_t* values, const uint8_t* scales,
                              int64_t j, bf16* x) {
  switch (format) {
    case KeyFormat::kF64:
      break;
    case KeyFormat::kBf16:
      std::memcpy(x, values, static_cast<size_t>(2 * j));
      break;
    case KeyFormat::kFp8:
      widen_e4m3(values, j, x);
      break;
    case KeyFormat::kMxfp4:
      for (int64_t g = 0; g < j; g += 16) {
        const float scale = from_e8m0(scales[g / kMxfp4Group]);
        store_bf16(x + g, mul(load_e2m1(values + g / 2), set1(scale)));
      }
      break;
  }
}

}  // namespace
}  // namespace perigee::simd
