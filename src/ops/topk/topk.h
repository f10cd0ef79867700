// Selects the k best positions of every row of scores, in ascending position.
//
// Math     The k first of positions 0..lengths[t)-1 in the order (score descending, position
//          ascending). -0 equals 0; NaN ranks below every number, -inf included. A row with
//          lengths[t] <= k selects everything, whatever its scores.
// Shapes   scores [T, S] BF16 (F64 on kReference), lengths [T] I32 with 0 <= lengths[t] <= S, out
//          [T, k] I32, counts [T] I32. counts[t] = min(lengths[t], k); out beyond counts[t] is -1.
//          lengths and counts dense.
// Limits   k >= 1.
// Units    Positions.
// Numerics Exact. A row's result is a function of its first lengths[t] scores alone.
// Cost     At most eighteen reads of 2 S bytes per row (keys, sixteen halvings of their range, one
//          emission); limited by the cache that holds them. kCuda: three reads by one block a row (twelve bits of the keys, the
//          last four, one emission); a captured graph fixes the number of rows.
// Errors   Wrong shapes are bugs and abort.
// Threads  Rows in parallel.
// Source   DeepSeek-V3.2 sparse attention; the tie rule is ours and part of the model's meaning:
//          rounded scores tie often.
// Tests    topk_test.cc.
#pragma once

#include "ops/context.h"
#include "tensor/parts.h"

namespace perigee::ops {

using tensor::Tensor;

void topk(const Context& context, const Tensor& scores, const Tensor& lengths, int64_t k,
          const Tensor& out, const Tensor& counts);

// Rows [first_row, first_row + R) of a step, on any device: scores [R, S], out [T, k] and counts [T] of the whole step. A
// row's length is its position + 1; rows of no part are left alone. On kCuda `places` [T, k] I32, unless it is empty, receives
// the physical row of each position (tensor::PagePlace::place), so that whoever gathers records needs no block table.
void topk(const Context& context, const Tensor& scores, const tensor::Parts& parts,
          int64_t first_row, int64_t k, const tensor::PagePlace& pages, const Tensor& out, const Tensor& counts,
          const Tensor& places);

namespace cuda {
void topk(const Context& context, const Tensor& scores, const tensor::Parts& parts,
          int64_t first_row, int64_t k, const tensor::PagePlace& pages, const Tensor& out, const Tensor& counts,
          const Tensor& places);
}  // namespace cuda

namespace ref {
void topk(const Context& context, const Tensor& scores, const Tensor& lengths, int64_t k,
          const Tensor& out, const Tensor& counts);
}  // namespace ref

namespace cpu {
void topk(const Context& context, const Tensor& scores, const Tensor& lengths, int64_t k,
          const Tensor& out, const Tensor& counts);
}  // namespace cpu

}  // namespace perigee::ops
