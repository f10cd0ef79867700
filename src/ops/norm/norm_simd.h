// What    Normalisation of one row on raw pointers, one specialisation per instruction set with
//         equal bits.
// Owner   ops/norm.
// Threads Pure.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "num/isa.h"

namespace perigee::ops {

// One of `half` and `full` is the weight, the other is null.
struct NormWeight {
  const bf16* half;
  const float* full;
};

template <Isa>
void rms_norm_row(const bf16* x, NormWeight weight, float eps, int64_t n, bf16* out);
template <Isa>
void layer_norm_row(const bf16* x, const float* weight, const float* bias, float eps, int64_t n,
                    bf16* out);
template <Isa>
void gated_rms_norm_row(const float* x, const float* weight, const bf16* gate, float eps, int64_t n,
                        bf16* out);

template <>
void rms_norm_row<Isa::kGeneric>(const bf16*, NormWeight, float, int64_t, bf16*);
template <>
void rms_norm_row<Isa::kAvx2>(const bf16*, NormWeight, float, int64_t, bf16*);
template <>
void rms_norm_row<Isa::kAvx512>(const bf16*, NormWeight, float, int64_t, bf16*);
template <>
void layer_norm_row<Isa::kGeneric>(const bf16*, const float*, const float*, float, int64_t, bf16*);
template <>
void layer_norm_row<Isa::kAvx2>(const bf16*, const float*, const float*, float, int64_t, bf16*);
template <>
void layer_norm_row<Isa::kAvx512>(const bf16*, const float*, const float*, float, int64_t, bf16*);
template <>
void gated_rms_norm_row<Isa::kGeneric>(const float*, const float*, const bf16*, float, int64_t,
                                       bf16*);
template <>
void gated_rms_norm_row<Isa::kAvx2>(const float*, const float*, const bf16*, float, int64_t, bf16*);
template <>
void gated_rms_norm_row<Isa::kAvx512>(const float*, const float*, const bf16*, float, int64_t,
                                      bf16*);

}  // namespace perigee::ops
