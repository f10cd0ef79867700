// What    Shapes that the tests and benchmarks of ops/attn_res share.
// Owner   ops/attn_res.
// Threads Constants.
// Errors  None.
#pragma once

#include <cstdint>

namespace perigee::ops {

struct AttnResCase {
  int64_t rows;  // vectors of one token
  int64_t width;
};

// One vector alone, the first and last mix of the published model, more than a vector of scores,
// widths beside 16.
constexpr AttnResCase kAttnResCases[] = {{1, 16}, {2, 7168}, {9, 7168}, {3, 40},
                                         {5, 1},  {9, 100},  {17, 33},  {40, 65}};

// Tokens that mix the published model's nine rows of 7168.
constexpr AttnResCase kAttnResBenchShape = {9, 7168};
constexpr int64_t kAttnResBenchTokens[] = {1, 64, 2048};

}  // namespace perigee::ops
