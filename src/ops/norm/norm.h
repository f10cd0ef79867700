// Normalises rows: by root mean square, by mean and variance, or by root mean square with a sigmoid
// gate.
// Math     rms_norm:       out = x / sqrt(mean(x^2) + eps) * weight
//          layer_norm:     out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias
//          gated_rms_norm: out = x / sqrt(mean(x^2) + eps) * weight * sigmoid(gate), the mean over
//          V for each head
// Shapes   x [T, N] activation (gated: [T, H, V] real); weight [N] bf16 or f32, dense (layer_norm,
//          gated: f32); bias [N] f32; gate [T, H*V] activation; out [T, N] or [T, H*V] activation.
//          rms_norm's out may be x itself.
// Limits   N, V >= 1; eps >= 0. |x| below 2^60: the sum of squares must fit FP32.
// Units    None.
// Numerics FP32 inside, products left to right as written, one rounding to the activation type. Row
//          invariant and equal on every instruction set: sums run over 16 lanes in ascending
//          blocks, then a fixed tree. Relative error of a result below (N/32 + 8) FP32 roundings
//          (gated 8 more) plus the final rounding. On a GPU sums run as docs/kernels/arithmetic.md
//          says, with the same bound.
// Cost     4 T N bytes, about 4 T N flops; limited by memory.
// Errors   CHECK on shapes.
// Threads  Parallel over rows (gated: over heads of rows).
// Source   RMSNorm (Zhang, Sennrich 2019); the weight is multiplied before the only rounding
//          (docs/numerics.md).
// Tests    norm_test.cc: hand numbers, reference bounds, widths that are no multiple of 16,
//          aliasing, row independence.
#pragma once

#include "ops/context.h"

namespace perigee::ops {

using tensor::Tensor;

void rms_norm(const Context& context, const Tensor& x, const Tensor& weight, double eps,
              const Tensor& out);
void layer_norm(const Context& context, const Tensor& x, const Tensor& weight, const Tensor& bias,
                double eps, const Tensor& out);
void gated_rms_norm(const Context& context, const Tensor& x, const Tensor& weight,
                    const Tensor& gate, double eps, const Tensor& out);

namespace ref {
void rms_norm(const Tensor& x, const Tensor& weight, double eps, const Tensor& out);
void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& out);
void gated_rms_norm(const Tensor& x, const Tensor& weight, const Tensor& gate, double eps,
                    const Tensor& out);
}  // namespace ref
namespace cpu {
void rms_norm(const Context& context, const Tensor& x, const Tensor& weight, double eps,
              const Tensor& out);
void layer_norm(const Context& context, const Tensor& x, const Tensor& weight, const Tensor& bias,
                double eps, const Tensor& out);
void gated_rms_norm(const Context& context, const Tensor& x, const Tensor& weight,
                    const Tensor& gate, double eps, const Tensor& out);
}  // namespace cpu
namespace cuda {
void rms_norm(const Context& context, const Tensor& x, const Tensor& weight, double eps,
              const Tensor& out);
void layer_norm(const Context& context, const Tensor& x, const Tensor& weight, const Tensor& bias,
                double eps, const Tensor& out);
void gated_rms_norm(const Context& context, const Tensor& x, const Tensor& weight,
                    const Tensor& gate, double eps, const Tensor& out);
}  // namespace cuda

}  // namespace perigee::ops
