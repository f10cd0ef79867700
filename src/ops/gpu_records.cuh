// What    Reads and writes cache records on a GPU: the bytes of num/record_codec.h, and values as BF16, which holds every one of
//         them.
// Owner   ops. Included by GPU sources only.
// Threads Functions named warp_* need the 32 lanes of a warp; the others are per thread.
// Errors  None.
// Source  num/records.h.
#pragma once

#include "num/record_codec.h"
#include "ops/gpu_mma.cuh"
#include "tensor/parts.h"

namespace perigee::ops::gpu {

// Bits of magnitudes order as integers, NaN above everything.
__device__ inline float larger_magnitude(float a, float b) {
  return float_bits(a) > float_bits(b) ? a : b;
}

// Over `lanes` neighbours, a power of two.
__device__ inline float warp_largest(float x, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) x = larger_magnitude(x, lane_xor(x, mask));
  return x;
}

__device__ inline bool is_inf(float x) { return (float_bits(x) & 0x7fffffffu) == 0x7f800000u; }

// The code of x / scale with the signs that a CPU gives to NaN.
__device__ inline uint8_t scaled_e4m3_code(float x, float scale) {
  if (is_nan(x)) return static_cast<uint8_t>((float_bits(x) >> 24 & 0x80u) | 0x7fu);
  if (is_inf(x) && is_inf(scale)) return 0xffu;
  return to_e4m3(x / scale);
}

// 16 neighbours (kNvfp4Group) whose values a lane pair holds, or 32 (kMxfp4Group): a lane has two neighbouring columns.
__device__ inline uint8_t nibbles(float even, float odd, float scale, bool zero) {
  if (zero) return 0;
  return static_cast<uint8_t>(scaled_e2m1(even, scale) | scaled_e2m1(odd, scale) << 4);
}

// One column of a record as BF16.
__device__ inline bf16 latent_value(LatentFormat format, const uint8_t* record, int64_t c, int64_t r, int64_t column) {
  switch (format) {
    case LatentFormat::kBf16:
      return reinterpret_cast<const bf16*>(record)[column];
    case LatentFormat::kFp8:
      return to_bf16(from_e4m3(record[column]));
    case LatentFormat::kNvfp4: {
      if (column >= c) return to_bf16(from_e4m3(record[c / 2 + column - c]));
      const auto code = static_cast<uint8_t>(column % 2 == 0 ? record[column / 2] & 15 : record[column / 2] >> 4);
      return to_bf16(from_e2m1(code) * from_e4m3(record[c / 2 + r + column / kNvfp4Group]));
    }
    case LatentFormat::kF64:
      break;
  }
  return bf16{};
}

// The part and the position of a row of the step.
struct Place {
  const tensor::Part* part;
  int64_t position;
};

__device__ inline Place place_of(const tensor::Part* parts, const int32_t* part_of_row, int64_t row) {
  const int32_t i = part_of_row[row];
  if (i < 0) return {nullptr, 0};
  return {parts + i, parts[i].position + row - parts[i].row_begin};
}

// Records may stand at any byte, so their BF16 and FP32 numbers are moved in pieces that any address allows.
__device__ inline void put_float(uint8_t* to, float x) {
  const uint32_t u = float_bits(x);
  for (int i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(u >> (8 * i));
}

__device__ inline float get_float(const uint8_t* from) {
  uint32_t u = 0;
  for (int i = 0; i < 4; ++i) u |= static_cast<uint32_t>(from[i]) << (8 * i);
  return float_from_bits(u);
}

}  // namespace perigee::ops::gpu
