#include "ops/conv1d/conv1d_simd.h"

#include "num/simd.h"

namespace perigee::ops {
namespace {

using namespace simd;

// Input `s` rows after the first one; negative places lie in the window.
PERIGEE_INLINE const bf16* input(const ConvBlock& b, int64_t s) {
  return s < 0 ? b.window + (b.width - 1 + s) * b.window_stride : b.x + s * b.x_stride;
}

}  // namespace

template <>
void conv_block<Isa::PERIGEE_ISA>(const ConvBlock& b) {
  for (int64_t c = 0; c < b.channels; c += 16) {
    const int64_t n = b.channels - c;
    float taps[16][16] = {};  // taps of the 16 channels, transposed
    for (int64_t i = 0; i < n && i < 16; ++i) {
      for (int64_t j = 0; j < b.width; ++j) taps[j][i] = b.weight[(c + i) * b.width + j];
    }
    for (int64_t r = 0; r < b.rows; ++r) {
      f32x16 y = zero();
      for (int64_t j = 0; j < b.width; ++j) {
        y = fma(load(taps[j]), load_bf16_part(input(b, r - (b.width - 1) + j) + c, n), y);
      }
      store_bf16_part(b.out + r * b.out_stride + c, mul(y, sigmoid(y)), n);
    }
  }
}

}  // namespace perigee::ops
