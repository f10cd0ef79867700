// Copies the embedding row of every token.
// Math     out[t] = table[ids[t]]
// Shapes   ids [T] i32 dense; table [O, D] bf16; out [T, D] activation, no aliasing.
// Limits   0 <= ids[t] < O: ids come from the tokenizer or from checked requests, so another value
//          is a bug; on kCuda whoever fills ids checks them.
// Units    None.
// Numerics Exact: BF16 is copied (CPU, GPU) or widened (reference).
// Cost     4 T D bytes, no arithmetic; limited by memory.
// Errors   CHECK on shapes and ids.
// Threads  Parallel over tokens.
// Source   The usual input embedding; no scaling.
// Tests    embed_test.cc: hand rows, both devices, ids out of range, strides, row independence.
#pragma once

#include "ops/context.h"

namespace perigee::ops {

using tensor::Tensor;

void embed(const Context& context, const Tensor& ids, const Tensor& table, const Tensor& out);

namespace ref {
void embed(const Tensor& ids, const Tensor& table, const Tensor& out);
}
namespace cuda {
void embed(const Context& context, const Tensor& ids, const Tensor& table, const Tensor& out);
}
namespace cpu {
void embed(const Context& context, const Tensor& ids, const Tensor& table, const Tensor& out);
}

}  // namespace perigee::ops
