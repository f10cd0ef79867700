// What    Made-up weights: every value is a function of a tensor's key and the value's index, so order, threads and
//         device do not matter.
// Owner   model; for benchmarks and tests of shapes whose real weights are elsewhere.
// Threads Pure functions.
// Errors  None.
#pragma once

#include <cstdint>
#include <span>

#include "model/weight_table.h"
#include "num/bf16.h"

namespace perigee::model {

// Values [begin, begin + out.size()) of a tensor of the table.
void fill_dummy(const TensorRow& row, uint64_t key, int64_t begin, std::span<float> out);

// Bytes [begin, begin + out.size()) of MXFP4 codes; begin is a multiple of 8.
void fill_dummy_codes(uint64_t key, int64_t begin, std::span<uint8_t> out);

// Scales [begin, begin + out.size()) that give the row's products the deviation it asks for.
void fill_dummy_scales(const TensorRow& row, uint64_t key, int64_t begin, std::span<uint8_t> out);

}  // namespace perigee::model
