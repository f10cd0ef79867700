// What    Shapes that the tests and the bench of expert grouping share.
// Owner   ops/moe_permute.
// Threads Constants.
// Errors  None.
#pragma once

#include <cstdint>

namespace perigee::ops {

struct CombineCase {
  int64_t t;
  int64_t active;
  int64_t width;
};

inline constexpr CombineCase kCombineTestCases[] = {{0, 2, 16},  {1, 1, 1},    {2, 3, 17},
                                                    {5, 8, 100}, {3, 16, 600}, {40, 4, 513}};
inline constexpr CombineCase kCombineBenchCases[] = {{1, 16, 3584}, {64, 16, 3584}, {512, 16, 3584}};

}  // namespace perigee::ops
