// Attends absorbed queries over cached latents, of the whole causal context or of selected
// positions.
//
// Math     x_i = latent record at the i-th listed position (C + r values); s_i = scale * (q . x_i);
//          p = softmax(s); out = sum_i p_i x_i[0:C]; lse = log sum_i exp(s_i), natural.
// Shapes   q [T, H, C + r] act, out [T, H, C] act, lse [T, H] F32 (F64 on kReference); sequence
//          rows [row_begin, row_begin + rows) stand at positions position, position + 1, ...;
//          selection null: row t sees positions 0 .. position(t); otherwise its first counts[t]
//          positions, which ascend and do not exceed position(t). Nothing aliases.
// Limits   kNvfp4 needs C % 16 == 0; kF64 exists on kReference only.
// Units    Base-e logarithms.
// Numerics kCuda: docs/kernels/arithmetic.md, "Attention"; C <= 512.
//          kCpu: FP32. The list is cut into pieces of 64 slots. Per piece: scores by ascending chains of
//          fused multiply-adds over C + r, times scale; maximum; exponentials; their sum over 16
//          lanes ascending, then the fixed tree; values by chains over ascending slots from zero.
//          Pieces are joined in order; one division; out rounded once. Bits depend on the row's own
//          query and listed records only: a list of every position gives the bits of the dense
//          call. Scores of -inf weigh nothing; a row without weight (empty list included) gives
//          zeros and lse -inf; NaN and +inf give NaN. kReference: the same in double.
// Cost     Per row and slot 2 H (2 C + r) flops; latent_bytes per slot read once per block of rows
//          and heads; limited by arithmetic from 16 heads on (docs/kernels/mla.md).
// Errors   Wrong shapes are bugs and abort.
// Threads  Blocks of rows times blocks of heads.
// Source   DeepSeek-V2 (absorbed latent attention), DeepSeek-V3.2 (sparse selection);
//          docs/numerics.md N5.
// Tests    mla_test.cc.
#pragma once

#include <array>
#include <span>

#include "num/records.h"
#include "ops/context.h"
#include "tensor/parts.h"

namespace perigee::ops {

using tensor::Tensor;

constexpr int64_t kMlaPiece = 64;  // slots; part of the numerics, not a tuning knob
constexpr int64_t kMlaGpuLatentMax = 512;  // C on kCuda

struct MlaSequence {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t position = 0;  // of row_begin
  tensor::PageView latents;
};

struct Selection {
  Tensor positions;  // [T, X] I32, ascending
  Tensor counts;     // [T] I32
  Tensor places = {};  // [T, X] I32, the positions' physical rows as ops/topk gives them on kCuda; empty: found by position
};

void mla(const Context& context, const Tensor& q, LatentFormat format, int64_t latent_width,
         double scale, std::span<const MlaSequence> sequences, const Selection* selection,
         const Tensor& out, const Tensor& lse);

// The rows of a step, on any device; a layer's pages are the same for all sequences. `workspace` [rows, units, H, C + 2] F32 as
// mla_workspace says lets a GPU divide long rows of small steps among its multiprocessors; it may be empty, and changes no bit.
void mla(const Context& context, const Tensor& q, LatentFormat format, int64_t latent_width,
         double scale, const tensor::Parts& parts, const tensor::PagePlace& latents,
         const Selection* selection, const Tensor& workspace, const Tensor& out, const Tensor& lse);

// Dimensions of a workspace for steps of up to `rows` rows that see up to `slots_max` slots, of at most `bytes_max` bytes; of no
// rows where a device has no use for it.
std::array<int64_t, 4> mla_workspace(tensor::Device device, int64_t rows, int64_t heads, int64_t latent_width, int64_t slots_max,
                                     int64_t bytes_max);

namespace cuda {
void mla(const Context& context, const Tensor& q, LatentFormat format, int64_t latent_width,
         double scale, const tensor::Parts& parts, const tensor::PagePlace& latents,
         const Selection* selection, const Tensor& workspace, const Tensor& out, const Tensor& lse);
std::array<int64_t, 4> mla_workspace(int64_t rows, int64_t heads, int64_t latent_width, int64_t slots_max, int64_t bytes_max);
}  // namespace cuda

namespace ref {
void mla(const Context& context, const Tensor& q, LatentFormat format, int64_t latent_width,
         double scale, std::span<const MlaSequence> sequences, const Selection* selection,
         const Tensor& out, const Tensor& lse);
}  // namespace ref

namespace cpu {
void mla(const Context& context, const Tensor& q, LatentFormat format, int64_t latent_width,
         double scale, std::span<const MlaSequence> sequences, const Selection* selection,
         const Tensor& out, const Tensor& lse);
}  // namespace cpu

}  // namespace perigee::ops
