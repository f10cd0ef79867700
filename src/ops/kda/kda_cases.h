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

// How much a token forgets: drawn, everything the bound allows, nothing, both in turn, or any
// amount without a bound.
enum class KdaDecay { kDrawn, kFull, kNone, kAlternating, kUnbounded };
constexpr KdaDecay kKdaDecays[] = {KdaDecay::kDrawn, KdaDecay::kFull, KdaDecay::kNone,
                                   KdaDecay::kAlternating, KdaDecay::kUnbounded};

}  // namespace perigee::ops
