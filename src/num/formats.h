// What    Eight- and four-bit floating point codes, one number at a time: e4m3, e2m1 and e8m0, both
//         directions.
// Owner   num.
// Threads Pure functions.
// Errors  None. Too large values saturate; NaN survives in e4m3 and e8m0 (e2m1 has no NaN: it
//         becomes 0).
// Source  OCP Microscaling Formats (MX) 1.0: code points of e4m3, e2m1 and e8m0. Rounding is to
//         nearest, ties to even.
//
// All are constexpr, so device code may call them (nvcc --expt-relaxed-constexpr) and the bits are
// the host's. Every function is inlined by force: files of several instruction sets include this
// header, and the linker must not merge their copies. Denormal FP32 input counts as zero, as the
// CPU device flushes denormals everywhere.
#pragma once

#include <cstdint>

namespace perigee {

constexpr float kE4m3Max = 448.0f;
constexpr float kE2m1Max = 6.0f;

[[gnu::always_inline]] constexpr uint32_t float_bits(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
[[gnu::always_inline]] constexpr float float_from_bits(uint32_t u) {
  return __builtin_bit_cast(float, u);
}

// A denormal becomes a zero of its sign.
[[gnu::always_inline]] constexpr float flush_denormal(float x) {
  const uint32_t u = float_bits(x);
  return (u & 0x7f800000u) == 0 ? float_from_bits(u & 0x80000000u) : x;
}

// 1 sign, 4 exponent bits of bias 7, 3 mantissa bits; no infinity, 0x7f is NaN, the largest value
// is 448.
[[gnu::always_inline]] constexpr uint8_t to_e4m3(float x) {
  const uint32_t u = float_bits(x);
  const uint32_t sign = u >> 24 & 0x80u;
  uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  const uint32_t largest = 0x43e00000u;  // 448
  if (a > largest) a = largest;
  if (a < 0x3c800000u) {
    // Below 2^-6 the step is 2^-9, which is the unit in the last place of 2^14: adding it rounds.
    const float shifted = float_from_bits(a) + 0x1p14f;
    return static_cast<uint8_t>(sign | (float_bits(shifted) - 0x46800000u));
  }
  a += 0x7ffffu + (a >> 20 & 1u);
  return static_cast<uint8_t>(sign | ((a >> 20) - (120u << 3)));
}

[[gnu::always_inline]] constexpr float from_e4m3(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t a = code & 0x7fu;
  if (a == 0x7fu) return float_from_bits(sign | 0x7fc00000u);
  if (a < 8u) return float_from_bits(float_bits(static_cast<float>(a) * 0x1p-9f) | sign);
  return float_from_bits(sign | ((a << 20) + (120u << 23)));
}

// 1 sign, 2 exponent bits, 1 mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6. The result is in the low
// four bits.
[[gnu::always_inline]] constexpr uint8_t to_e2m1(float x) {
  const uint32_t u = float_bits(x);
  const float a = float_from_bits(u & 0x7fffffffu);  // NaN compares false: code 0
  // Midpoints between neighbours; a tie goes to the even code.
  const unsigned code = unsigned(a > 0.25f) + unsigned(a >= 0.75f) + unsigned(a > 1.25f) +
                        unsigned(a >= 1.75f) + unsigned(a > 2.5f) + unsigned(a >= 3.5f) +
                        unsigned(a > 5.0f);
  return static_cast<uint8_t>((u >> 28 & 8u) | code);
}

[[gnu::always_inline]] constexpr float from_e2m1(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 8u) << 28;
  const uint32_t a = code & 7u;
  if (a < 2u) return float_from_bits(sign | (a * 0x3f000000u));
  return float_from_bits(sign | ((a << 22) + (126u << 23)));
}

// 2^(code - 127); 255 is NaN. 2^-127 is a denormal.
[[gnu::always_inline]] constexpr float from_e8m0(uint8_t code) {
  if (code == 0xffu) return float_from_bits(0x7fc00000u);
  return float_from_bits(code == 0 ? 0x00400000u : static_cast<uint32_t>(code) << 23);
}

// The scale of an MXFP4 group whose largest magnitude is amax: the smallest power of two s with
// amax <= 6 s, from 2^-126 (scales are never denormal) on, found on the bits so that no logarithm
// is rounded. NaN gives NaN, infinity the largest.
[[gnu::always_inline]] constexpr uint8_t mxfp4_scale(float amax) {
  const uint32_t a = float_bits(amax) & 0x7fffffffu;
  if (a > 0x7f800000u) return 0xff;
  // amax = m 2^e with m in [1, 2); 6 s = 1.5 * 2^(log2 s + 2).
  const int32_t log2 = static_cast<int32_t>(a >> 23) - 127 - ((a & 0x7fffffu) > 0x400000u ? 1 : 2);
  return static_cast<uint8_t>((log2 < -126 ? -126 : log2 > 127 ? 127 : log2) + 127);
}

}  // namespace perigee
