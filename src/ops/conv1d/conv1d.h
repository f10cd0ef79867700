// Convolves every channel of a sequence causally over time and applies SiLU, carrying the last
// inputs between calls.
// Math     y[t, c] = sum_j weight[c, j] x[t - (width-1) + j, c];  out = y sigmoid(y); j = width-1
//          is the row itself
// Shapes   x [T, N] activation; weight [N, width] f32 dense; out [T, N] activation, not aliasing x.
//          A sequence owns rows [row_begin, row_begin + rows). `window` [width-1, N] activation, dense, holds the inputs before
//          the start of the chunk of 16 that holds `position` (zeros at the start of a text), `open` [16, N] the inputs of that
//          chunk before `position`. Both are advanced by the call.
// Limits   1 <= width <= 16; position >= 0; sequences do not overlap; rows of no sequence are left alone. With width 1 window
//          and open are unused.
// Units    position in tokens.
// Numerics FP32: one FMA chain from zero over ascending taps, SiLU, one rounding. A row depends on
//          itself and the width-1 inputs before it, so every cut of a sequence into calls gives the
//          same bits, on every instruction set. Calling again from an earlier position of the open chunk forgets the rows
//          after it; at a chunk's start the window alone is the state. Error below 1.1 width FP32 roundings of sum |weight
//          x|, 8 of the result, and the final rounding. kCuda: the same chain, SiLU by ex2.approx and rcp.approx
//          (ops/gpu_glu.cuh); a captured graph fixes the number of parts.
// Cost     4 T N + 4 N width bytes, about (2 width + 30) T N flops; limited by memory.
// Errors   CHECK on shapes and sequences.
// Threads  Parallel over blocks of 128 channels.
// Source   Short convolution of Kimi Delta Attention; weight order as in the checkpoint [N, 1,
//          width].
// Tests    conv1d_test.cc: hand numbers, reference bounds, every cut into calls, windows, row
//          independence.
#pragma once

#include <span>

#include "ops/context.h"
#include "tensor/parts.h"

namespace perigee::ops {

using tensor::Tensor;

constexpr int64_t kConvWidthMax = 16;
constexpr int64_t kConvChunk = 16;  // the grid of ops/kda

struct ConvSequence {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t position = 0;  // absolute, of the first row
  void* window = nullptr;
  void* open = nullptr;
};

void causal_conv1d(const Context& context, const Tensor& x, const Tensor& weight,
                   std::span<const ConvSequence> sequences, const Tensor& out);

// The rows of a step, on any device.
void causal_conv1d(const Context& context, const Tensor& x, const Tensor& weight,
                   const tensor::Parts& parts, const tensor::StatePlace& window,
                   const tensor::SlotPlace& open, const Tensor& out);

namespace cuda {
void causal_conv1d(const Context& context, const Tensor& x, const Tensor& weight,
                   const tensor::Parts& parts, const tensor::StatePlace& window,
                   const tensor::SlotPlace& open, const Tensor& out);
}
namespace ref {
void causal_conv1d(const Tensor& x, const Tensor& weight, std::span<const ConvSequence> sequences,
                   const Tensor& out);
}
namespace cpu {
void causal_conv1d(const Context& context, const Tensor& x, const Tensor& weight,
                   std::span<const ConvSequence> sequences, const Tensor& out);
}

}  // namespace perigee::ops
