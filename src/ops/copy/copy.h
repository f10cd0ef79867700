// copy: copies rectangles of activations, each with its own row strides.
//
// Math      out[t, i] = x[t, i]
// Shapes    per item: x [T, N], out [T, N], one element type, row strides free; items must not overlap
// Limits    same T for all items of a call, so that rows can be shared out among threads
// Units     elements
// Numerics  exact on every device
// Cost      2 T N element bytes; memory
// Errors    contract violations abort
// Threads   rows are shared out among the context's threads; no scratch
// Source    ours
// Tests     copy_test.cc
#pragma once

#include <span>

#include "ops/context.h"

namespace perigee::ops {

struct CopyItem {
  tensor::Tensor x;
  tensor::Tensor out;
};

void copy(const Context& context, std::span<const CopyItem> items);

namespace cuda {
void copy(const Context& context, std::span<const CopyItem> items);
}

}  // namespace perigee::ops
