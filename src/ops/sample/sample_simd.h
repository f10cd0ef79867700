// What    Sums, exponentials and noise over runs of logits on raw pointers, one specialisation per
//         instruction set with equal bits. NaN counts as -inf, +inf as the largest number.
// Owner   ops/sample.
// Threads Pure.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/isa.h"

namespace perigee::ops {

struct SplitSum {
  float max;  // -inf for a split without any logit above it
  float sum;  // of exp(x - max)
};

template <Isa>
SplitSum sum_split(const float* x, int64_t n);
// ln of the whole sum, splits in ascending order.
template <Isa>
float join_splits(const SplitSum* splits, int64_t count);
// scaled = (x - shift) * factor, and its exponential.
template <Isa>
void scale_logits(const float* x, int64_t n, float shift, float factor, float* scaled,
                  float* exponential);
// scores = scaled - ln(-ln(1 - v)).
template <Isa>
void add_noise(const float* scaled, const float* v, int64_t n, float* scores);

template <>
SplitSum sum_split<Isa::kGeneric>(const float*, int64_t);
template <>
SplitSum sum_split<Isa::kAvx2>(const float*, int64_t);
template <>
SplitSum sum_split<Isa::kAvx512>(const float*, int64_t);
template <>
float join_splits<Isa::kGeneric>(const SplitSum*, int64_t);
template <>
float join_splits<Isa::kAvx2>(const SplitSum*, int64_t);
template <>
float join_splits<Isa::kAvx512>(const SplitSum*, int64_t);
template <>
void scale_logits<Isa::kGeneric>(const float*, int64_t, float, float, float*, float*);
template <>
void scale_logits<Isa::kAvx2>(const float*, int64_t, float, float, float*, float*);
template <>
void scale_logits<Isa::kAvx512>(const float*, int64_t, float, float, float*, float*);
template <>
void add_noise<Isa::kGeneric>(const float*, const float*, int64_t, float*);
template <>
void add_noise<Isa::kAvx2>(const float*, const float*, int64_t, float*);
template <>
void add_noise<Isa::kAvx512>(const float*, const float*, int64_t, float*);

}  // namespace perigee::ops
