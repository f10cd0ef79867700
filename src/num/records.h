// What    The per-token records of the cache: their formats, sizes and places inside a page.
// Owner   num. Written by ops/page_io, read by ops/mla and ops/index_score; the planner asks for
//         sizes.
// Threads Pure functions.
// Errors  A size of 0 means that the format cannot hold this width; the caller refuses the flag.
// Source  docs/numerics.md, "Cache formats".
//
// A page holds kRecordPage tokens. C = latent width, r = extra dims, J = index key width.
//   latents: one whole record after the other
//     kF64    C + r doubles
//     kBf16   C + r BF16 values
//     kFp8    C + r e4m3 values, scale 1
//     kNvfp4  C/2 bytes of e2m1 (low nibble = even element), r e4m3 values of scale 1, C/16 e4m3
//             scales, one per 16 elements: e4m3(amax / 6). A group whose scale rounds to 0 is all
//             zeros. Needs C % 16 == 0.
//   keys
//     kF64    one whole record of J doubles after the other
//     kBf16   one whole record of J BF16 values after the other
//     kFp8    values of the whole page (J e4m3 per token), then its scales: per token ceil(J/128)
//             FP32 numbers max(amax, 1e-4) / 448, one per 128 elements
//     kMxfp4  values of the whole page (J/2 bytes of e2m1 per token), then its scales: per token
//             J/32 e8m0 bytes, 2^ceil(log2(amax / 6)), one per 32 elements. Needs J % 32 == 0.
#pragma once

#include <cstdint>

namespace perigee {

enum class LatentFormat { kF64, kBf16, kFp8, kNvfp4 };
enum class KeyFormat { kF64, kBf16, kFp8, kMxfp4 };

constexpr int64_t kRecordPage = 64;
constexpr int64_t kNvfp4Group = 16;
constexpr int64_t kMxfp4Group = 32;
constexpr int64_t kFp8KeyGroup = 128;
constexpr float kFp8KeyAmaxFloor = 1e-4f;  // keeps the scale of a zero key away from zero

// Bytes of one latent record, 0 when the format cannot hold width c.
[[gnu::always_inline]] constexpr int64_t latent_bytes(LatentFormat format, int64_t c, int64_t r) {
  switch (format) {
    case LatentFormat::kF64:
      return 8 * (c + r);
    case LatentFormat::kBf16:
      return 2 * (c + r);
    case LatentFormat::kFp8:
      return c + r;
    case LatentFormat::kNvfp4:
      return c % kNvfp4Group == 0 ? c / 2 + r + c / kNvfp4Group : 0;
  }
  return 0;
}

// Bytes of a key's values without its scales, 0 when the format cannot hold width j.
[[gnu::always_inline]] constexpr int64_t key_value_bytes(KeyFormat format, int64_t j) {
  switch (format) {
    case KeyFormat::kF64:
      return 8 * j;
    case KeyFormat::kBf16:
      return 2 * j;
    case KeyFormat::kFp8:
      return j;
    case KeyFormat::kMxfp4:
      return j % kMxfp4Group == 0 ? j / 2 : 0;
  }
  return 0;
}

// Bytes of a key's scales.
[[gnu::always_inline]] constexpr int64_t key_scale_bytes(KeyFormat format, int64_t j) {
  switch (format) {
    case KeyFormat::kFp8:
      return 4 * ((j + kFp8KeyGroup - 1) / kFp8KeyGroup);
    case KeyFormat::kMxfp4:
      return j / kMxfp4Group;
    case KeyFormat::kF64:
    case KeyFormat::kBf16:
      break;
  }
  return 0;
}

// Bytes of one key record, 0 when the format cannot hold width j.
[[gnu::always_inline]] constexpr int64_t key_bytes(KeyFormat format, int64_t j) {
  const int64_t values = key_value_bytes(format, j);
  return values == 0 ? 0 : values + key_scale_bytes(format, j);
}

// Where the values and the scales of token `slot` begin inside its page.
[[gnu::always_inline]] constexpr int64_t key_value_offset(KeyFormat format, int64_t j, int64_t slot) {
  return slot * key_value_bytes(format, j);
}
[[gnu::always_inline]] constexpr int64_t key_scale_offset(KeyFormat format, int64_t j, int64_t slot) {
  return kRecordPage * key_value_bytes(format, j) + slot * key_scale_bytes(format, j);
}

}  // namespace perigee
