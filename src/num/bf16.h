// What    bfloat16 storage with round-to-nearest-even conversion, usable on host and device.
// Owner   num.
// Threads Value type.
// Errors  None. NaN stays NaN (quiet), infinities stay.
// Source  The upper 16 bits of IEEE binary32.
#pragma once

#include <cstdint>

namespace perigee {

struct bf16 {
  uint16_t bits = 0;
};

constexpr float to_float(bf16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}

constexpr bf16 to_bf16(float f) {
  uint32_t u = __builtin_bit_cast(uint32_t, f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  u += 0x7fffu + ((u >> 16) & 1u);
  return {static_cast<uint16_t>(u >> 16)};
}

}  // namespace perigee
