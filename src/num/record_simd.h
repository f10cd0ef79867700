// What    The record codec on sixteen lanes: the bits of num/record_codec.h, for the vector files of operations.
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

PERIGEE_INLINE f32x16 quiet_nan() { return from_bits(set1i(0x7fc00000)); }

PERIGEE_INLINE i32x16 selecti(mask16 m, i32x16 a, i32x16 b) {
  return bits(select(m, from_bits(a), from_bits(b)));
}

PERIGEE_INLINE f32x16 e4m3_values(i32x16 code) {
  const i32x16 sign = shl<24>(andi(code, set1i(0x80)));
  const i32x16 a = andi(code, set1i(0x7f));
  const f32x16 number = to_float(a);
  const f32x16 normal = from_bits(addi(shl<20>(a), set1i(120 << 23)));
  f32x16 v = select(less(number, set1(8.0f)), mul(number, set1(0x1p-9f)), normal);
  v = select(less(number, set1(127.0f)), v, quiet_nan());
  return from_bits(ori(bits(v), sign));
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

PERIGEE_INLINE f32x16 e2m1_values(i32x16 code) {
  const i32x16 sign = shl<28>(andi(code, set1i(8)));
  const i32x16 a = andi(code, set1i(7));
  const f32x16 number = to_float(a);
  const f32x16 normal = from_bits(addi(shl<22>(a), set1i(126 << 23)));
  const f32x16 v = select(less(number, set1(2.0f)), mul(number, set1(0.5f)), normal);
  return from_bits(ori(bits(v), sign));
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

// The first n of sixteen codes as bytes.
PERIGEE_INLINE void store_bytes(uint8_t* p, i32x16 code, int64_t n) {
  int32_t buffer[16];
  storei(buffer, code);
  for (int64_t i = 0; i < n && i < 16; ++i) p[i] = static_cast<uint8_t>(buffer[i]);
}
PERIGEE_INLINE i32x16 load_bytes(const uint8_t* p, int64_t n) {
  if (n >= 16) return load_u8(p);
  uint8_t buffer[16] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load_u8(buffer);
}

// Sixteen codes as eight bytes, the even element in the low nibble.
PERIGEE_INLINE void store_nibbles(uint8_t* p, i32x16 code) {
  int32_t buffer[16];
  storei(buffer, code);
  for (int i = 0; i < 8; ++i) {
    p[i] = static_cast<uint8_t>(buffer[2 * i] | buffer[2 * i + 1] << 4);
  }
}
PERIGEE_INLINE i32x16 load_nibbles(const uint8_t* p) {
#if defined(__AVX2__)
  const __m128i both = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(both, mask);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(both, 4), mask);
  alignas(16) uint8_t buffer[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(buffer), _mm_unpacklo_epi8(low, high));
#else
  uint8_t buffer[16];
  for (int i = 0; i < 8; ++i) {
    buffer[2 * i] = p[i] & 15;
    buffer[2 * i + 1] = static_cast<uint8_t>(p[i] >> 4);
  }
#endif
  return load_u8(buffer);
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
  for (int64_t i = 0; i < n; i += 16) {
    bf16 half[16];
    const int64_t part = n - i < 16 ? n - i : 16;
    store_bf16(half, load_bf16_part(x + i, n - i));
    std::memcpy(out + 2 * i, half, static_cast<size_t>(2 * part));
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
    case LatentFormat::kF64: break;
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
    case KeyFormat::kF64: break;
    case KeyFormat::kBf16: encode_bf16(x, j, values); break;
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
  for (int64_t i = 0; i < n; i += 16) {
    bf16 half[16] = {};
    std::memcpy(half, in + 2 * i, static_cast<size_t>(n - i < 16 ? 2 * (n - i) : 32));
    store_part(x + i, load_bf16(half), n - i);
  }
}
PERIGEE_INLINE void decode_e4m3(const uint8_t* in, int64_t n, float* x) {
  for (int64_t i = 0; i < n; i += 16) {
    store_part(x + i, e4m3_values(load_bytes(in + i, n - i)), n - i);
  }
}

// C + r values of one latent record.
PERIGEE_INLINE void decode_latent(LatentFormat format, const uint8_t* in, int64_t c, int64_t r,
                                  float* x) {
  switch (format) {
    case LatentFormat::kF64: break;
    case LatentFormat::kBf16: decode_bf16(in, c + r, x); break;
    case LatentFormat::kFp8: decode_e4m3(in, c + r, x); break;
    case LatentFormat::kNvfp4:
      for (int64_t g = 0; g < c; g += kNvfp4Group) {
        const float scale = from_e4m3(in[c / 2 + r + g / kNvfp4Group]);
        store(x + g, mul(e2m1_values(load_nibbles(in + g / 2)), set1(scale)));
      }
      decode_e4m3(in + c / 2, r, x + c);
      break;
  }
}

// J values of one key. The scale of an FP8 key of one group stays out (the score is multiplied by it at the end); keys of
// several groups take their scales in.
PERIGEE_INLINE void decode_key(KeyFormat format, const uint8_t* values, const uint8_t* scales,
                               int64_t j, float* x) {
  switch (format) {
    case KeyFormat::kF64: break;
    case KeyFormat::kBf16: decode_bf16(values, j, x); break;
    case KeyFormat::kFp8:
      decode_e4m3(values, j, x);
      for (int64_t g = 0; j > kFp8KeyGroup && g < j; g += 16) {
        float scale;
        std::memcpy(&scale, scales + g / kFp8KeyGroup * 4, 4);
        store_part(x + g, mul(load_part(x + g, j - g), set1(scale)), j - g);
      }
      break;
    case KeyFormat::kMxfp4:
      for (int64_t g = 0; g < j; g += 16) {
        const float scale = from_e8m0(scales[g / kMxfp4Group]);
        store(x + g, mul(e2m1_values(load_nibbles(values + g / 2)), set1(scale)));
      }
      break;
  }
}

}  // namespace
}  // namespace perigee::simd
