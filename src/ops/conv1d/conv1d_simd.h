// What    The convolution of one block of channels of one sequence on raw pointers, one
//         specialisation per instruction set with equal bits.
// Owner   ops/conv1d.
// Threads Pure apart from its output block.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "num/isa.h"

namespace perigee::ops {

// Every pointer stands at the block's first channel; strides are in elements.
struct ConvBlock {
  const bf16* x;
  int64_t x_stride;
  int64_t rows;
  const bf16* window;
  int64_t window_stride;
  const float* weight;  // [channels, width]
  int64_t width;
  int64_t channels;
  bf16* out;
  int64_t out_stride;
};

template <Isa>
void conv_block(const ConvBlock& b);

template <>
void conv_block<Isa::kGeneric>(const ConvBlock& b);
template <>
void conv_block<Isa::kAvx2>(const ConvBlock& b);
template <>
void conv_block<Isa::kAvx512>(const ConvBlock& b);

}  // namespace perigee::ops
