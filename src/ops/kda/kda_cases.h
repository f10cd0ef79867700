// What    Head shapes and decay regimes that the tests and benchmarks of ops/kda share.
// Owner   ops/kda.
// Threads Constants.
// Errors  None.
#pragma once

#include <cstdint>

namespace perigee::ops {

struct KdaCase {
  int64_t heads;
  int64_t key_dim;
  int64_t value_dim;
};

// One value, widths beside a vector, tiny models, the published head.
constexpr KdaCase kKdaCases[] = {{1, 1, 1},  {2, 16, 16}, {3, 20, 24},
                                 {1, 33, 7}, {2, 7, 50},  {1, 128, 128}};

// What one call gets: `sequences` times `rows` rows from `position` on, heads of 128 x 128.
struct KdaBenchCase {
  int64_t heads;
  int64_t sequences;
  int64_t rows;
  int64_t position;
};

// An eighth of Kimi K3's heads: decode inside a chunk and where it ends, prefill. Then all heads in one sequence.
constexpr KdaBenchCase kKdaBenchCases[] = {{12, 1, 1, 8},    {12, 64, 1, 8},    {12, 256, 1, 8}, {12, 1, 1, 15},
                                           {12, 64, 1, 15},  {12, 256, 1, 15},  {12, 1, 4, 0},   {12, 1, 2048, 0},
                                           {96, 1, 1, 8},    {96, 1, 1, 15},    {96, 1, 256, 0}};

// How much a token forgets: drawn, everything the bound allows, nothing, both in turn, or any
// amount without a bound.
enum class KdaDecay { kDrawn, kFull, kNone, kAlternating, kUnbounded };
constexpr KdaDecay kKdaDecays[] = {KdaDecay::kDrawn, KdaDecay::kFull, KdaDecay::kNone,
                                   KdaDecay::kAlternating, KdaDecay::kUnbounded};

}  // namespace perigee::ops
