// What    Router scores of one token, compiled once per instruction set.
// Owner   ops/moe_route.
// Threads Pure functions.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/isa.h"

namespace perigee::ops::cpu {

// scores = sigmoid(logits); keys = scores + bias.
template <Isa>
void route_scores(const float* logits, const float* bias, int64_t experts, float* scores,
                  float* keys);

template <>
void route_scores<Isa::kGeneric>(const float*, const float*, int64_t, float*, float*);
template <>
void route_scores<Isa::kAvx2>(const float*, const float*, int64_t, float*, float*);
template <>
void route_scores<Isa::kAvx512>(const float*, const float*, int64_t, float*, float*);

}  // namespace perigee::ops::cpu
