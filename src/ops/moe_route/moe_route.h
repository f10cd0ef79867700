// Chooses the active experts of every token and their weights from router logits.
//
// Math     s = sigmoid(logits); the A experts with the largest s + bias, ties to the lowest id; weight = s * scale, or
//          s / (sum of the chosen s + 1e-20) * scale when renormalizing. The bias steers the choice and never the weight.
// Shapes   logits [T, E] real · bias [E] f32 · ids [T, A] i32 · weights [T, A] real; rows may be strided. T may be 0.
// Limits   1 <= A <= E.
// Numerics FP32; invariant: a row depends on its own logits only. Slots are ordered by (s + bias descending, id ascending);
//          the sum runs in slot order. A NaN score ranks below everything. The choice is exact for the FP32 scores, which
//          are within 3 * 2^-23 of the exact sigmoid.
// Cost     (4 E + 8 A) T bytes, a handful of flops per logit: latency-bound beside the experts' products.
// Errors   CHECK on shapes and types.
// Threads  One parallel loop over tokens.
// Source   Kimi K3's public model code: sigmoid scores, bias-corrected choice, unbiased weights, one group of experts.
// Tests    moe_route_test.cc: hand numbers, ties, NaN, reference, row independence.
#pragma once

#include <cstdint>

#include "ops/context.h"

namespace perigee::ops {

using tensor::Tensor;

struct RouteParams {
  int64_t active;
  bool renormalize;
  double scale;
};

void moe_route(const Context& context, const Tensor& logits, const Tensor& bias,
               const RouteParams& params, const Tensor& ids, const Tensor& weights);

namespace ref {
void moe_route(const Context& context, const Tensor& logits, const Tensor& bias,
               const RouteParams& params, const Tensor& ids, const Tensor& weights);
}
namespace cuda {
void moe_route(const Context& context, const Tensor& logits, const Tensor& bias,
               const RouteParams& params, const Tensor& ids, const Tensor& weights);
}
namespace cpu {
void moe_route(const Context& context, const Tensor& logits, const Tensor& bias,
               const RouteParams& params, const Tensor& ids, const Tensor& weights);
}

}  // namespace perigee::ops
