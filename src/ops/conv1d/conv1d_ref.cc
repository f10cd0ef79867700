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
    for (int64_t c = 0; c < channels; ++c) {
      std::vector<double> inputs;  // of this channel: the window, then the rows
      for (int64_t i = 0; i < width - 1; ++i) inputs.push_back(window[i * channels + c]);
      for (int64_t r = 0; r < s.rows; ++r) inputs.push_back(x.row<double>(s.row_begin + r)[c]);
      for (int64_t r = 0; r < s.rows; ++r) {
        double y = 0;
        for (int64_t j = 0; j < width; ++j) {
          y += weight.as<float>()[c * width + j] * inputs[static_cast<size_t>(r + j)];
        }
        out.row<double>(s.row_begin + r)[c] = y / (1 + std::exp(-y));
      }
      for (int64_t i = 0; i < width - 1; ++i) {
        window[i * channels + c] = inputs[static_cast<size_t>(s.rows + i)];
      }
    }
  }
}

}  // namespace perigee::ops::ref
