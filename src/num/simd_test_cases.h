// What    Runs every function of num/simd.h on given lanes, compiled once per instruction set.
// Owner   num tests.
// Threads Pure.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/isa.h"

namespace perigee {

constexpr int kSimdFunctions = 13;

// out[function][lane] for 16 lanes of a, b, c. Specialised in simd_test_simd.cc.
template <Isa>
void simd_apply(const float* a, const float* b, const float* c, float out[kSimdFunctions][16]);

template <>
void simd_apply<Isa::kGeneric>(const float*, const float*, const float*, float[kSimdFunctions][16]);
template <>
void simd_apply<Isa::kAvx2>(const float*, const float*, const float*, float[kSimdFunctions][16]);
template <>
void simd_apply<Isa::kAvx512>(const float*, const float*, const float*, float[kSimdFunctions][16]);

}  // namespace perigee
