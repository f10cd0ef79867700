// What    Numbers of the layout kFragmentMxfp4, for packing on the host and reading on a GPU.
// Owner   ops/moe_gemm.
// Threads Constants.
// Errors  None.
// Source  docs/kernels/arithmetic.md, "Experts on packed MXFP4".
#pragma once

#include <cstdint>

namespace perigee::ops {

constexpr int64_t kFragmentBlock = 64;         // outputs and columns of a block
constexpr int64_t kFragmentCodeBytes = 2048;   // [4 tiles of 16 outputs][32 lanes][16 bytes]
// Then scales [4 tiles][8 rows g][(k32 0, g), (k32 0, g + 8), (k32 1, g), (k32 1, g + 8)].
constexpr int64_t kFragmentBlockBytes = 2176;
constexpr int kFragmentScaleBias = 126;        // scales are stored as exponent fields of 2^(scale byte - 1)
constexpr int kFragmentScaleMax = 128;

// The bits of code `c` in the lower (0) or upper (1) half of register `j` of a word: a rotation by kRotate[j] and a mask bring
// them to sign, exponent and mantissa of BF16 (bits 15, 8, 7, 6). Bit 2 of register 3 goes by 10, as its place by 2 is taken.
constexpr uint32_t fragment_code(int j, int half, int c) {
  constexpr int kRotate[4] = {0, 12, 6, 2};
  uint32_t word = 0;
  for (int bit = 0; bit < 4; ++bit) {
    if ((c >> bit & 1) == 0) continue;
    const int place = (bit == 3 ? 15 : 6 + bit) + 16 * half;
    const int rotate = j == 3 && bit == 2 ? 10 : kRotate[j];
    word |= uint32_t{1} << ((place - rotate) & 31);
  }
  return word;
}

}  // namespace perigee::ops
