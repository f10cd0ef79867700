// Advances the delta-rule states of sequences by their new rows and returns the rows' attention
// outputs.
// Math     Per head and token, with rate = exp(a_log):
//            kn = k / sqrt(|k|^2 + 1e-6)      qn = K^-1/2 q / sqrt(|q|^2 + 1e-6)
//            g = lower_bound sigmoid(rate (z + dt_bias)), or -rate softplus(z + dt_bias) unbounded
//            alpha = exp(g)                   beta = sigmoid(b)
//            S' = diag(alpha) S;  S <- S' + beta kn (v - S'^T kn)^T;  o = S^T qn
//          CPU: the same in chunks of 16 on the grid of absolute positions. With the products, from
//          left to right, decay_c(r) = k_c alpha_{c+1} ... alpha_r and D_r = alpha_0 ... alpha_r,
//          row r of a chunk is
//            A_rc = k_r . decay_c(r), M_rc = q_r . decay_c(r)
//            u_r = beta_r (v_r - (k_r D_r)^T S) - beta_r sum_{c<r} A_rc u_c
//            o_r = (q_r D_r)^T S + sum_{c<=r} M_rc u_c
//          and a full chunk gives S <- D_15 S + sum_c decay_c(15) u_c^T. Every factor is at most 1,
//          so decay without a bound needs no other code and nothing overflows.
// Shapes   q, k, z [T, H, K], v [T, H, V], b [T, H] activation; a_log [>= H] f32; dt_bias [H*K]
//          f32; out [T, H, V] real. A sequence owns rows [row_begin, row_begin + rows). `state` [H,
//          K, V] real, dense, is S at the start of the chunk that holds `position`; `open` has
//          kda_open_bytes and keeps the rows of that chunk before `position`. Both are advanced by
//          the call. At position 0 `state` is zero and `open` arbitrary.
// Limits   1 <= H, K, V <= 4096; position >= 0; lower_bound < 0; sequences do not overlap; other
//          rows of out are left alone.
// Units    position in tokens.
// Numerics kCuda: docs/kernels/arithmetic.md, "KDA"; K and V are multiples of 16 up to 128, the state lies in the order of a
//          warp's registers. kCpu: FP32 throughout, nothing rounded to BF16 inside. A row is a function of S at its chunk's
//          start and of the rows before it in the chunk, each sum in one order (dots over K: 16
//          lanes in ascending blocks, then a tree; sums over the state's rows and over the chunk:
//          ascending FMA chains from zero). So one row at a time, any cut into calls and whole
//          prefills give the same bits in out, state and open, on every instruction set. `open`
//          holds plain per-row values: calling again from an earlier position of the same chunk
//          forgets the rows after it. Errors are bounded by the running analysis in
//          kda_bound_test.cc.
// Cost     A decode row reads 4 H K V bytes and every 16th row writes them; prefill reads and
//          writes them once per 16 rows. About (6 K V + 43 K + 34 V) H flops a row. Decode is limited
//          by memory, prefill by FMAs (docs/kernels/kda.md).
// Errors   CHECK on shapes and sequences.
// Threads  Parallel over (head, sequence).
// Source   Kimi Delta Attention (arXiv 2510.26692), recurrence and chunk form; the chunk form here
//          is derived for 16 rows.
// Tests    kda_test.cc: hand numbers, every cut, batches, truncation, instruction sets;
//          kda_bound_test.cc: chunks against the recurrence under full, no, alternating and
//          unbounded decay.
#pragma once

#include <optional>
#include <span>

#include "ops/context.h"
#include "tensor/parts.h"

namespace perigee::ops {

using tensor::Tensor;

constexpr int64_t kKdaChunk = 16;
constexpr int64_t kKdaGpuMultiple = 16;  // of K and V on kCuda
constexpr int64_t kKdaGpuMax = 128;

struct KdaParams {
  int64_t heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  std::optional<double> lower_bound;  // of a token's log-decay; none: softplus decay
};

struct KdaSequence {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t position = 0;  // absolute, of the first row
  void* state = nullptr;
  void* open = nullptr;
};

// Bytes of one sequence's open-chunk rows.
int64_t kda_open_bytes(tensor::Device device, const KdaParams& params);

// The tensors of one call.
struct KdaInputs {
  Tensor q;
  Tensor k;
  Tensor v;
  Tensor z;
  Tensor b;
  Tensor a_log;
  Tensor dt_bias;
};

void kda(const Context& context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& z,
         const Tensor& b, const Tensor& a_log, const Tensor& dt_bias, const KdaParams& params,
         std::span<const KdaSequence> sequences, const Tensor& out);

// The rows of a step, on any device.
void kda(const Context& context, const KdaInputs& in, const KdaParams& params, const tensor::Parts& parts,
         const tensor::StatePlace& state, const tensor::SlotPlace& open, const Tensor& out);

namespace cuda {
int64_t kda_open_bytes(const KdaParams& params);
void kda(const Context& context, const KdaInputs& in, const KdaParams& params, const tensor::Parts& parts,
         const tensor::StatePlace& state, const tensor::SlotPlace& open, const Tensor& out);
}  // namespace cuda
namespace ref {
int64_t kda_open_bytes(const KdaParams& params);
void kda(const KdaInputs& in, const KdaParams& params, std::span<const KdaSequence> sequences,
         const Tensor& out);
}  // namespace ref
namespace cpu {
int64_t kda_open_bytes(const KdaParams& params);
void kda(const Context& context, const KdaInputs& in, const KdaParams& params,
         std::span<const KdaSequence> sequences, const Tensor& out);
}  // namespace cpu

}  // namespace perigee::ops
