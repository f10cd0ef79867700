// Groups the (token, slot) pairs of a step by expert, and adds the experts' outputs back to their tokens.
//
// Math     moe_permute: a counting sort of ids, by expert, then token, then slot. moe_combine: out[t] = sum over slots a of
//          weights[t, a] * y[place[t, a]].
// Shapes   ids [T, A] i32 · offsets [E+1] i32: expert e owns grouped slots offsets[e] .. offsets[e+1]-1 · source [T*A] i32:
//          token of a grouped slot · place [T, A] i32: grouped slot of a pair. y [T*A, Z] real · weights [T, A] real ·
//          out [T, Z] act. Two-dimensional rows may be strided. T may be 0.
// Limits   0 <= ids < E; T*A < 2^31; kCuda: E <= 1280, ids are not checked.
// Numerics moe_permute is exact. moe_combine: FP32, one chain of fused multiply-adds from zero in slot order, rounded once:
//          |error| <= A 2^-24 sum |w y| + 2^-8 |out|; invariant: a token depends on its own slots only.
// Cost     moe_permute: 16 T A + 4 E bytes. moe_combine: 4 T A Z + 2 T Z bytes, 2 T A Z flops: memory-bound.
// Errors   CHECK on shapes, types and ids.
// Threads  moe_permute runs on the caller (a few thousand integers); moe_combine is one parallel loop over (token, columns).
// Source   -
// Tests    moe_permute_test.cc: hand numbers, every id order as a property, reference, row independence.
#pragma once

#include <cstdint>

#include "ops/context.h"

namespace perigee::ops {

using tensor::Tensor;

constexpr int64_t kPermuteGpuExpertsMax = 1280;  // E on kCuda

void moe_permute(const Context& context, const Tensor& ids, int64_t experts, const Tensor& offsets,
                 const Tensor& source, const Tensor& place);

void moe_combine(const Context& context, const Tensor& y, const Tensor& place,
                 const Tensor& weights, const Tensor& out);

namespace ref {
void moe_combine(const Context& context, const Tensor& y, const Tensor& place,
                 const Tensor& weights, const Tensor& out);
}
namespace cuda {
void moe_permute(const Context& context, const Tensor& ids, int64_t experts, const Tensor& offsets,
                 const Tensor& source, const Tensor& place);
void moe_combine(const Context& context, const Tensor& y, const Tensor& place,
                 const Tensor& weights, const Tensor& out);
}
namespace cpu {
void moe_combine(const Context& context, const Tensor& y, const Tensor& place,
                 const Tensor& weights, const Tensor& out);
}

}  // namespace perigee::ops
