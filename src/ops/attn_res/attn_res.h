// Mixes the block vectors and the live accumulator of every token by a softmax over their scores.
// Math     s_j = (V_j . query) / sqrt(mean(V_j^2) + eps);  a = softmax(s);  out = sum_j a_j V_j
//          V_j is row j of a token (bank first, live accumulator last), query the norm weight times
//          the projection row.
// Shapes   rows: n tensors, each [T, D] activation; query [D] f32 dense; out [T, D] activation, not
//          aliasing any row.
// Limits   1 <= n <= 256; D >= 1; |V| below 2^60: the sum of squares must fit FP32.
// Units    None.
// Numerics FP32: scores over 16 lanes in ascending blocks, softmax and mix in row order (one FMA
//          chain from zero), rounded once. Row invariant, equal on every instruction set. On a
//          GPU the sums of the scores run as docs/kernels/arithmetic.md says.
// Cost     2 T D (n + 1) bytes from memory (the mix finds a token's rows in cache), 6 n T D flops;
//          limited by memory.
// Errors   CHECK on shapes.
// Threads  Parallel over tokens.
// Source   Block attention residuals of Kimi K3: un-normalised vectors are mixed, no scale, no
//          bias.
// Tests    attn_res_test.cc: hand numbers, reference bounds, 1 to 40 rows, equal scores, row
//          independence.
#pragma once

#include <span>

#include "ops/context.h"

namespace perigee::ops {

using tensor::Tensor;

constexpr int64_t kAttnResRowsMax = 256;

void attn_res_mix(const Context& context, std::span<const Tensor> rows, const Tensor& query,
                  double eps, const Tensor& out);

namespace ref {
void attn_res_mix(std::span<const Tensor> rows, const Tensor& query, double eps, const Tensor& out);
}
namespace cpu {
void attn_res_mix(const Context& context, std::span<const Tensor> rows, const Tensor& query,
                  double eps, const Tensor& out);
}
namespace cuda {
void attn_res_mix(const Context& context, std::span<const Tensor> rows, const Tensor& query,
                  double eps, const Tensor& out);
}

}  // namespace perigee::ops
