// Applies the element-wise functions of a layer: gated activations, the sigmoid output gate and the
// residual sum.
// Math     glu, SiTU:    out = [b1 tanh(g / b1) sigmoid(g)] * [b2 tanh(u / b2)], so |out| <= b1 b2
//          glu, SiLU:    out = g sigmoid(g) * u
//          sigmoid_gate: out = x sigmoid(gate)
//          add:          out = a + b
// Shapes   All [T, N] activation; out may be any of the inputs. On kCuda gate and up of glu are real: products that were not
//          rounded, so that fused kernels can have the same bits.
// Limits   SiTU: beta, linear_beta > 0.
// Units    None.
// Numerics kCuda: ops/gpu_glu.cuh; relative error below 4e-6 and |gate| FP32 roundings before the final one; SiTU saturates
//          with infinite operands as it does with large ones.
//          Others: FP32 inside, operations in the order written, rounded once; element-wise, so invariant
//          in every respect and equal on every instruction set. Relative error below 24 FP32
//          roundings plus the final rounding. -inf as a gate gives 0 (SiTU) or NaN (SiLU: -inf *
//          0), as in the reference; a sigmoid below 2^-126 is 0, so that 0 times an infinite
//          operand is NaN.
// Cost     6 T N bytes, about 60 flops an element for glu; limited by memory when several threads
//          share it.
// Errors   CHECK on shapes and parameters.
// Threads  Parallel over blocks of 1024 columns of a row.
// Source   SiTU: the bounded gated unit of Kimi K3 (activation_situ_beta,
//          activation_situ_linear_beta).
// Tests    act_test.cc: hand numbers, reference bounds, saturation and infinities, aliasing, row
//          independence.
#pragma once

#include "ops/context.h"

namespace perigee::ops {

using tensor::Tensor;

enum class GluKind { kSitu, kSilu };

struct GluParams {
  GluKind kind = GluKind::kSilu;
  double beta = 1;         // b1, SiTU only
  double linear_beta = 1;  // b2, SiTU only
};

void glu(const Context& context, const Tensor& gate, const Tensor& up, const GluParams& params,
         const Tensor& out);
void sigmoid_gate(const Context& context, const Tensor& x, const Tensor& gate, const Tensor& out);
void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& out);

namespace ref {
void glu(const Tensor& gate, const Tensor& up, const GluParams& params, const Tensor& out);
void sigmoid_gate(const Tensor& x, const Tensor& gate, const Tensor& out);
void add(const Tensor& a, const Tensor& b, const Tensor& out);
}  // namespace ref
namespace cpu {
void glu(const Context& context, const Tensor& gate, const Tensor& up, const GluParams& params,
         const Tensor& out);
void sigmoid_gate(const Context& context, const Tensor& x, const Tensor& gate, const Tensor& out);
void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& out);
}  // namespace cpu
namespace cuda {
void glu(const Context& context, const Tensor& gate, const Tensor& up, const GluParams& params,
         const Tensor& out);
void sigmoid_gate(const Context& context, const Tensor& x, const Tensor& gate, const Tensor& out);
void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& out);
}  // namespace cuda

}  // namespace perigee::ops
