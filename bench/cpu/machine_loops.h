// What    Loops that measure the machine, compiled once per instruction set.
// Owner   bench.
// Threads Pure functions.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/isa.h"

namespace perigee::bench {

// Reads `bytes` bytes (a multiple of 256) with vector loads; the sum keeps the loads alive.
template <Isa>
int32_t read_all(const uint8_t* data, int64_t bytes);

template <>
int32_t read_all<Isa::kGeneric>(const uint8_t*, int64_t);
template <>
int32_t read_all<Isa::kAvx2>(const uint8_t*, int64_t);
template <>
int32_t read_all<Isa::kAvx512>(const uint8_t*, int64_t);

// kMultiplyAddsARound FP32 multiply-adds a round in registers; the result keeps them alive.
constexpr int64_t kMultiplyAddsARound = 12 * 16;
template <Isa>
float multiply_adds(int64_t rounds);

template <>
float multiply_adds<Isa::kGeneric>(int64_t);
template <>
float multiply_adds<Isa::kAvx2>(int64_t);
template <>
float multiply_adds<Isa::kAvx512>(int64_t);

// Four independent tile products a round, from registers or from operands that wait in L1; only where the processor has AMX.
constexpr int64_t kTileMultiplyAddsARound = 4 * 16 * 16 * 32;
void tile_products(int64_t rounds, bool fed);

}  // namespace perigee::bench
