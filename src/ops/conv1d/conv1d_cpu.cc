#include <algorithm>
#include <cstring>

#include "ops/conv1d/conv1d.h"
#include "ops/conv1d/conv1d_simd.h"

namespace perigee::ops::cpu {
namespace {

constexpr int64_t kBlock = 128;  // channels of one work item: two cache lines a row

// The window becomes the last width-1 of (window, rows); ascending order, so that old entries are
// read in time.
void advance_window(const ConvBlock& b, bf16* window) {
  const size_t bytes = static_cast<size_t>(b.channels) * sizeof(bf16);
  for (int64_t i = 0; i < b.width - 1; ++i) {
    const int64_t s = b.rows + i - (b.width - 1);
    const bf16* from = s < 0 ? window + (b.rows + i) * b.window_stride : b.x + s * b.x_stride;
    if (b.rows > 0) std::memcpy(window + i * b.window_stride, from, bytes);
  }
}

}  // namespace

void causal_conv1d(const Context& context, const Tensor& x, const Tensor& weight,
                   std::span<const ConvSequence> sequences, const Tensor& out) {
  const int64_t channels = x.dims[1];
  const int64_t width = weight.dims[1];
  context.pool->parallel_for((channels + kBlock - 1) / kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t c = block * kBlock;
      for (const ConvSequence& s : sequences) {
        bf16* window = width == 1 ? nullptr : static_cast<bf16*>(s.window) + c;
        const ConvBlock b = {x.row<bf16>(s.row_begin) + c,
                             x.row_stride,
                             s.rows,
                             window,
                             channels,
                             weight.as<float>() + c * width,
                             width,
                             std::min(kBlock, channels - c),
                             out.row<bf16>(s.row_begin) + c,
                             out.row_stride};
        with_isa(context.isa, [&]<Isa isa>() { conv_block<isa>(b); });
        advance_window(b, window);
      }
    }
  });
}

}  // namespace perigee::ops::cpu
