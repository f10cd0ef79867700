#include <cmath>
#include <vector>

#include "ops/conv1d/conv1d.h"

namespace perigee::ops::ref {

void causal_conv1d(const Tensor& x, const Tensor& weight, std::span<const ConvSequence> sequences,
                   const Tensor& out) {
  const int64_t channels = x.dims[1];
  const int64_t width = weight.dims[1];
  for (const ConvSequence& s : sequences) {
    auto* window = static_cast<double*>(s.window);
    auto* open = static_cast<double*>(s.open);
    const int64_t before = width == 1 ? 0 : s.position % kConvChunk;
    const int64_t shift = (before + s.rows) / kConvChunk * kConvChunk;  // the chunk's start moves on by so much
    for (int64_t c = 0; c < channels && s.rows > 0; ++c) {
      std::vector<double> inputs;  // of this channel: the window, the open chunk, the rows
      for (int64_t i = 0; i < width - 1; ++i) inputs.push_back(window[i * channels + c]);
      for (int64_t i = 0; i < before; ++i) inputs.push_back(open[i * channels + c]);
      for (int64_t r = 0; r < s.rows; ++r) inputs.push_back(x.row<double>(s.row_begin + r)[c]);
      for (int64_t r = 0; r < s.rows; ++r) {
        double y = 0;
        for (int64_t j = 0; j < width; ++j) {
          y += weight.as<float>()[c * width + j] * inputs[static_cast<size_t>(before + r + j)];
        }
        out.row<double>(s.row_begin + r)[c] = y / (1 + std::exp(-y));
      }
      for (int64_t i = 0; i < width - 1; ++i) window[i * channels + c] = inputs[static_cast<size_t>(shift + i)];
      for (int64_t i = 0; width > 1 && i < before + s.rows - shift; ++i) {
        open[i * channels + c] = inputs[static_cast<size_t>(shift + width - 1 + i)];
      }
    }
  }
}

}  // namespace perigee::ops::ref
