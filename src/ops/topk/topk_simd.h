// What    The passes of topk over one row, compiled once per instruction set.
// Owner   ops/topk.
// Threads Pure functions.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "num/isa.h"

namespace perigee::ops::cpu {

template <Isa>
struct TopkKernels {
  // Writes the positions of exactly k < n scores in ascending order. keys: room for n numbers, rounded up to 64.
  static void select(const bf16* scores, int64_t n, int64_t k, int16_t* keys, int32_t* out);
};

template <>
void TopkKernels<Isa::kGeneric>::select(const bf16*, int64_t, int64_t, int16_t*, int32_t*);
template <>
void TopkKernels<Isa::kAvx2>::select(const bf16*, int64_t, int64_t, int16_t*, int32_t*);
template <>
void TopkKernels<Isa::kAvx512>::select(const bf16*, int64_t, int64_t, int16_t*, int32_t*);

}  // namespace perigee::ops::cpu
