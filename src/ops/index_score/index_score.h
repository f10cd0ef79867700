// Scores every cached index key of a sequence against each new token's index heads.
//
// Math     score[t, s] = s_k(s) * sum_h g[t, h] * relu(q[t, h] . k[s]), g[t, h] = gates[t, h] *
//          I^-1/2 * J^-1/2 * s_q(t, h), for s = 0 .. position(t) (the token itself included).
//          Queries pass through the key format like keys do: kFp8 takes e4m3 values and leaves the
//          scales s_q, s_k outside the dot (with J > 128, where a vector has a scale per 128
//          columns, the dot is the sum over these groups of s_q s_k times the group's dot, and the
//          outer scales are 1); kMxfp4 takes dequantised values, kBf16 plain ones, both with
//          s_q = s_k = 1.
// Shapes   q [T, I, J] act, gates [T, I] act, scores [T, S] BF16 (F64 on kReference); sequence rows
//          [row_begin, row_begin + rows) stand at positions position, position + 1, ...; keys:
//          pages that hold positions 0 .. position + rows - 1. Only columns 0 .. position(t) of a
//          row are written.
// Limits   S > the last position; kMxfp4 needs J % 32 == 0; kF64 exists on kReference only.
// Units    Scores are unnormalised.
// Numerics kCuda: docs/kernels/arithmetic.md, "Index scores"; J <= 128.
//          kCpu: FP32: dots in the order of ops/gemm (blocks of 32 columns, even ones and odd ones apart),
//          groups and heads added in ascending order by fused multiply-adds, s_k once at the end,
//          one rounding to BF16. The same bits in every instruction set, matrix tiles included,
//          batch, chunking and page order. kReference: double, nothing rounded but by the cache
//          format.
// Cost     2 I J flops and, per block of rows, key_bytes bytes per (token, key); limited by
//          arithmetic, with matrix tiles by unpacking keys (docs/kernels).
// Errors   Wrong shapes are bugs and abort.
// Threads  Blocks of rows times ranges of keys.
// Source   DeepSeek-V3.2 lightning indexer; docs/numerics.md N4.
// Tests    index_score_test.cc.
#pragma once

#include <span>

#include "num/records.h"
#include "ops/context.h"
#include "tensor/parts.h"

namespace perigee::ops {

using tensor::Tensor;

constexpr int64_t kIndexGpuColumnsMax = 128;  // J on kCuda

struct IndexSequence {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t position = 0;  // of row_begin
  tensor::PageView keys;
};

void index_score(const Context& context, const Tensor& q, const Tensor& gates, KeyFormat format,
                 std::span<const IndexSequence> sequences, const Tensor& scores);

// Rows [first_row, first_row + R) of a step, on any device: q and gates hold the whole step, row i of scores belongs to row
// first_row + i. A row that sees no more than `skip` positions is not scored.
void index_score(const Context& context, const Tensor& q, const Tensor& gates, KeyFormat format,
                 const tensor::Parts& parts, const tensor::PagePlace& keys, int64_t first_row,
                 int64_t skip, const Tensor& scores);

namespace cuda {
void index_score(const Context& context, const Tensor& q, const Tensor& gates, KeyFormat format,
                 const tensor::Parts& parts, const tensor::PagePlace& keys, int64_t first_row,
                 int64_t skip, const Tensor& scores);
}  // namespace cuda

namespace ref {
void index_score(const Context& context, const Tensor& q, const Tensor& gates, KeyFormat format,
                 std::span<const IndexSequence> sequences, const Tensor& scores);
}  // namespace ref

namespace cpu {
void index_score(const Context& context, const Tensor& q, const Tensor& gates, KeyFormat format,
                 std::span<const IndexSequence> sequences, const Tensor& scores);
}  // namespace cpu

}  // namespace perigee::ops
