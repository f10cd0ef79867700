// What    The mix of one token on raw pointers, one specialisation per instruction set with equal
//         bits.
// Owner   ops/attn_res.
// Threads Pure apart from its output row.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "num/isa.h"

namespace perigee::ops {

// rows[0 .. count) each have n values; count <= 256.
template <Isa>
void attn_res_token(const bf16* const* rows, int64_t count, const float* query, float eps,
                    int64_t n, bf16* out);

template <>
void attn_res_token<Isa::kGeneric>(const bf16* const*, int64_t, const float*, float, int64_t,
                                   bf16*);
template <>
void attn_res_token<Isa::kAvx2>(const bf16* const*, int64_t, const float*, float, int64_t, bf16*);
template <>
void attn_res_token<Isa::kAvx512>(const bf16* const*, int64_t, const float*, float, int64_t, bf16*);

}  // namespace perigee::ops
