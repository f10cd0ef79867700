// What    Shapes that the tests and the bench of expert routing share.
// Owner   ops/moe_route.
// Threads Constants.
// Errors  None.
#pragma once

#include <cstdint>

namespace perigee::ops {

struct RouteCase {
  int64_t t;
  int64_t experts;
  int64_t active;
};

inline constexpr RouteCase kRouteTestCases[] = {{0, 8, 2},  {1, 1, 1},  {1, 896, 16}, {3, 17, 17},
                                                {5, 64, 8}, {7, 33, 3}, {70, 100, 16}};
inline constexpr RouteCase kRouteBenchCases[] = {{1, 896, 16}, {64, 896, 16}, {512, 896, 16}};

}  // namespace perigee::ops
