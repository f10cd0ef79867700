// What    Element-wise functions of two rows on raw pointers, one specialisation per instruction
//         set with equal bits.
// Owner   ops/act.
// Threads Pure.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "num/isa.h"

namespace perigee::ops {

enum class ActFunction { kSitu, kSilu, kSigmoidGate, kAdd };

// out[i] = f(a[i], b[i]); for SiTU a is the gate, b1 and b2 its bounds.
template <Isa>
void act_row(ActFunction f, const bf16* a, const bf16* b, float b1, float b2, int64_t n, bf16* out);

template <>
void act_row<Isa::kGeneric>(ActFunction, const bf16*, const bf16*, float, float, int64_t, bf16*);
template <>
void act_row<Isa::kAvx2>(ActFunction, const bf16*, const bf16*, float, float, int64_t, bf16*);
template <>
void act_row<Isa::kAvx512>(ActFunction, const bf16*, const bf16*, float, float, int64_t, bf16*);

}  // namespace perigee::ops
