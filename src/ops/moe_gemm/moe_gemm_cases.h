// What    Shapes and data that the tests and the bench of the experts' product share.
// Owner   ops/moe_gemm.
// Threads Pure functions.
// Errors  None.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"

namespace perigee::ops {

struct MoeCase {
  int64_t tokens;
  int64_t experts;
  int64_t active;
  int64_t n;
  int64_t k;
};

// From one row an expert to dozens, experts without rows, tails of rows and panels, several segments.
inline constexpr MoeCase kMoeTestCases[] = {
    {0, 3, 1, 16, 32},   {1, 1, 1, 1, 32},    {1, 8, 3, 17, 96},   {3, 4, 2, 40, 64},
    {9, 3, 2, 33, 1824}, {20, 2, 1, 16, 256}, {50, 3, 2, 50, 192}, {40, 1, 1, 272, 480}};

// Kimi K3's expert matrices, a set of 64 experts, 16 active: gate and up in one (w1, w3), then down (w2).
inline constexpr MoeCase kMoeGateUpBenchCases[] = {
    {1, 64, 16, 6144, 3584}, {16, 64, 16, 6144, 3584}, {256, 64, 16, 6144, 3584}};
inline constexpr MoeCase kMoeBenchCases[] = {
    {1, 64, 16, 3584, 3072}, {16, 64, 16, 3584, 3072}, {256, 64, 16, 3584, 3072}};

struct Mxfp4Rows {
  std::vector<uint8_t> codes;   // [n, k/2]
  std::vector<uint8_t> scales;  // [n, k/32]
};

// Any codes; scales 2^low .. 2^high.
inline Mxfp4Rows random_mxfp4(uint64_t seed, int64_t n, int64_t k, int low = -8, int high = 0) {
  Mxfp4Rows rows;
  rows.codes.resize(static_cast<size_t>(n * k / 2));
  rows.scales.resize(static_cast<size_t>(n * k / 32));
  for (size_t i = 0; i < rows.codes.size(); ++i) {
    rows.codes[i] = static_cast<uint8_t>(random_bits(seed, i));
  }
  const auto span = static_cast<uint64_t>(high - low + 1);
  for (size_t i = 0; i < rows.scales.size(); ++i) {
    rows.scales[i] =
        static_cast<uint8_t>(127 + low + static_cast<int>(random_bits(seed + 1, i) % span));
  }
  return rows;
}

// Expert of every (token, slot): distinct experts of one token, spread over all but the last when there are several.
inline std::vector<int32_t> random_experts(uint64_t seed, const MoeCase& c) {
  std::vector<int32_t> ids;
  const int64_t used = c.experts > c.active ? c.experts - 1 : c.experts;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const int64_t first = static_cast<int64_t>(random_bits(seed, t) % static_cast<uint64_t>(used));
    for (int64_t a = 0; a < c.active; ++a) ids.push_back(static_cast<int32_t>((first + a) % used));
  }
  return ids;
}

}  // namespace perigee::ops
