// What    Writes and reads one cache record in plain C++: what the vector code of ops/page_io,
//         ops/mla and ops/index_score must agree with, bit for bit, and what the reference device
//         uses.
// Owner   num. Not for files that are compiled per instruction set (num/record_simd.h is).
// Threads Pure functions.
// Errors  None. Formats must be able to hold the width (latent_bytes, key_bytes above 0). In a
//         scaled group a NaN makes the whole group NaN; an infinity saturates or, in kFp8 keys,
//         makes the record NaN.
// Source  num/records.h.
#pragma once

#include <algorithm>
#include <cstring>

#include "num/bf16.h"
#include "num/formats.h"
#include "num/records.h"

namespace perigee {

constexpr float magnitude(float x) { return float_from_bits(float_bits(flush_denormal(x)) & 0x7fffffffu); }
constexpr bool is_nan(float x) { return (float_bits(x) & 0x7fffffffu) > 0x7f800000u; }

// Largest magnitude; NaN when any value is.
inline float group_amax(const float* x, int64_t n) {
  float amax = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float a = magnitude(x[i]);
    if (!(a <= amax)) amax = a;
    if (is_nan(amax)) return amax;
  }
  return amax;
}

inline void put_nibble(uint8_t* bytes, int64_t i, uint8_t code) {
  bytes[i / 2] = static_cast<uint8_t>(i % 2 == 0 ? code : bytes[i / 2] | code << 4);
}
inline uint8_t get_nibble(const uint8_t* bytes, int64_t i) {
  return static_cast<uint8_t>(i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4);
}

inline void encode_bf16(const float* x, int64_t n, uint8_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    const bf16 h = to_bf16(x[i]);
    std::memcpy(out + 2 * i, &h, 2);
  }
}
inline void decode_bf16(const uint8_t* in, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) {
    bf16 h;
    std::memcpy(&h, in + 2 * i, 2);
    x[i] = to_float(h);
  }
}

// The code of x / s with the sign of x, whatever the quotient's is (NaN).
constexpr uint8_t scaled_e2m1(float x, float s) {
  const uint32_t sign = float_bits(x) >> 28 & 8u;
  return static_cast<uint8_t>(sign | to_e2m1(magnitude(x) / s));
}

// Scale of one group of an FP8 key; every NaN becomes the same one.
constexpr float fp8_key_scale(float amax) {
  if (is_nan(amax)) return float_from_bits(0x7fc00000u);
  // No std::max: it takes the address of a constant, which GPU code cannot read.
  return (amax > kFp8KeyAmaxFloor ? amax : kFp8KeyAmaxFloor) / kE4m3Max;
}

inline void encode_nvfp4(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  for (int64_t g = 0; g < n; g += kNvfp4Group) {
    const uint8_t scale = to_e4m3(group_amax(x + g, kNvfp4Group) / kE2m1Max);
    const float s = from_e4m3(scale);
    scales[g / kNvfp4Group] = scale;
    for (int64_t i = g; i < g + kNvfp4Group; ++i) {
      put_nibble(codes, i, scale == 0 ? uint8_t{0} : scaled_e2m1(x[i], s));
    }
  }
}

// One record from C latents and r extra dims.
inline void encode_latent(LatentFormat format, const float* latent, int64_t c, const float* rope,
                          int64_t r, uint8_t* out) {
  switch (format) {
    case LatentFormat::kF64:
      break;  // doubles are copied by the reference device itself
    case LatentFormat::kBf16:
      encode_bf16(latent, c, out);
      encode_bf16(rope, r, out + 2 * c);
      break;
    case LatentFormat::kFp8:
      for (int64_t i = 0; i < c; ++i) out[i] = to_e4m3(latent[i]);
      for (int64_t i = 0; i < r; ++i) out[c + i] = to_e4m3(rope[i]);
      break;
    case LatentFormat::kNvfp4:
      encode_nvfp4(latent, c, out, out + c / 2 + r);
      for (int64_t i = 0; i < r; ++i) out[c / 2 + i] = to_e4m3(rope[i]);
      break;
  }
}

// C + r values from one record.
inline void decode_latent(LatentFormat format, const uint8_t* in, int64_t c, int64_t r, float* x) {
  switch (format) {
    case LatentFormat::kF64:
      break;
    case LatentFormat::kBf16:
      decode_bf16(in, c + r, x);
      break;
    case LatentFormat::kFp8:
      for (int64_t i = 0; i < c + r; ++i) x[i] = from_e4m3(in[i]);
      break;
    case LatentFormat::kNvfp4:
      for (int64_t i = 0; i < c; ++i) {
        x[i] = from_e2m1(get_nibble(in, i)) * from_e4m3(in[c / 2 + r + i / kNvfp4Group]);
      }
      for (int64_t i = 0; i < r; ++i) x[c + i] = from_e4m3(in[c / 2 + i]);
      break;
  }
}

// Values and scales of one key; they lie apart inside the page.
inline void encode_key(KeyFormat format, const float* x, int64_t j, uint8_t* values,
                       uint8_t* scales) {
  switch (format) {
    case KeyFormat::kF64:
      break;
    case KeyFormat::kBf16:
      encode_bf16(x, j, values);
      break;
    case KeyFormat::kFp8:
      for (int64_t g = 0; g < j; g += kFp8KeyGroup) {
        const int64_t n = std::min(kFp8KeyGroup, j - g);
        const float scale = fp8_key_scale(group_amax(x + g, n));
        std::memcpy(scales + g / kFp8KeyGroup * 4, &scale, 4);
        for (int64_t i = g; i < g + n; ++i) values[i] = to_e4m3(x[i] / scale);
      }
      break;
    case KeyFormat::kMxfp4:
      for (int64_t g = 0; g < j; g += kMxfp4Group) {
        const uint8_t scale = mxfp4_scale(group_amax(x + g, kMxfp4Group));
        const float s = from_e8m0(scale);
        scales[g / kMxfp4Group] = scale;
        for (int64_t i = g; i < g + kMxfp4Group; ++i) {
          put_nibble(values, i, scaled_e2m1(x[i], s));
        }
      }
      break;
  }
}

// What a reader sees of one key: value times scale (rounded to FP32 once for kFp8, else exact).
inline void decode_key(KeyFormat format, const uint8_t* values, const uint8_t* scales, int64_t j,
                       float* x) {
  switch (format) {
    case KeyFormat::kF64:
      break;
    case KeyFormat::kBf16:
      decode_bf16(values, j, x);
      break;
    case KeyFormat::kFp8:
      for (int64_t i = 0; i < j; ++i) {
        float scale;
        std::memcpy(&scale, scales + i / kFp8KeyGroup * 4, 4);
        x[i] = from_e4m3(values[i]) * scale;
      }
      break;
    case KeyFormat::kMxfp4:
      for (int64_t i = 0; i < j; ++i) {
        x[i] =
            flush_denormal(from_e2m1(get_nibble(values, i)) * from_e8m0(scales[i / kMxfp4Group]));
      }
      break;
  }
}

}  // namespace perigee
