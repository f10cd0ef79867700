// What    The weighted sum of one token's expert outputs, compiled once per instruction set.
// Owner   ops/moe_permute.
// Threads Pure functions.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "num/isa.h"

namespace perigee::ops::cpu {

// out[z] = sum over a of weights[a] * rows[a][z].
template <Isa>
void combine_row(const float* const* rows, const float* weights, int64_t active, int64_t width,
                 bf16* out);

template <>
void combine_row<Isa::kGeneric>(const float* const*, const float*, int64_t, int64_t, bf16*);
template <>
void combine_row<Isa::kAvx2>(const float* const*, const float*, int64_t, int64_t, bf16*);
template <>
void combine_row<Isa::kAvx512>(const float* const*, const float*, int64_t, int64_t, bf16*);

}  // namespace perigee::ops::cpu
