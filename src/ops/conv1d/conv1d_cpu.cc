#include <algorithm>
#include <cstring>

#include "ops/conv1d/conv1d.h"
#include "ops/conv1d/conv1d_simd.h"

namespace perigee::ops::cpu {
namespace {

constexpr int64_t kBlock = 128;  // channels of one work item: two cache lines a row

// Inputs of a block of channels around a call: index 0 is the start of the open chunk. Negative ones lie in the window.
struct History {
  bf16* window;
  bf16* open;
  int64_t stride;
  int64_t width;
  const bf16* x;
  int64_t x_stride;
  int64_t before;  // rows of the open chunk
  int64_t rows;
  size_t bytes;  // of a row

  const bf16* at(int64_t i) const {
    if (i < 0) return window + (width - 1 + i) * stride;
    return i < before ? open + i * stride : x + (i - before) * x_stride;
  }
};

// Moves on to the chunk that is open after the rows. What the window takes lies in the old open chunk or in the rows, what the
// open chunk takes lies in the rows, so nothing is overwritten before it is read.
void advance(const History& h) {
  const int64_t shift = (h.before + h.rows) / kConvChunk * kConvChunk;
  for (int64_t i = 0; shift > 0 && i < h.width - 1; ++i) {
    std::memcpy(h.window + i * h.stride, h.at(shift - (h.width - 1) + i), h.bytes);
  }
  for (int64_t i = shift > 0 ? 0 : h.before; i < h.before + h.rows - shift; ++i) {
    std::memcpy(h.open + i * h.stride, h.at(shift + i), h.bytes);
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
        const int64_t wide = std::min(kBlock, channels - c);
        const History h = {width == 1 ? nullptr : static_cast<bf16*>(s.window) + c,
                           width == 1 ? nullptr : static_cast<bf16*>(s.open) + c,
                           channels,
                           width,
                           x.row<bf16>(s.row_begin) + c,
                           x.row_stride,
                           width == 1 ? 0 : s.position % kConvChunk,
                           s.rows,
                           static_cast<size_t>(wide) * sizeof(bf16)};
        if (s.rows == 0) continue;
        bf16 last[kConvWidthMax - 1][kBlock];  // the inputs right before the rows
        for (int64_t i = 0; i < width - 1; ++i) std::memcpy(last[i], h.at(h.before - (width - 1) + i), h.bytes);
        const ConvBlock b = {h.x, h.x_stride, s.rows, last[0], kBlock, weight.as<float>() + c * width, width, wide,
                             out.row<bf16>(s.row_begin) + c, out.row_stride};
        with_isa(context.isa, [&]<Isa isa>() { conv_block<isa>(b); });
        if (width > 1) advance(h);
      }
    }
  });
}

}  // namespace perigee::ops::cpu
