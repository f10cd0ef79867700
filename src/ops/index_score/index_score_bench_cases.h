// What    Shapes of index_score that benchmarks and tests share; apart from index_score_cases.h, which needs GoogleTest.
// Owner   ops/index_score.
// Threads Constants.
// Errors  None.
#pragma once

#include <cstdint>

namespace perigee::ops {

constexpr int64_t kIndexBenchWidth = 128;  // J as published

// The last `rows` rows of each of `sequences` sequences of `tokens` tokens.
struct IndexBenchCase {
  int64_t heads;
  int64_t sequences;
  int64_t rows;
  int64_t tokens;
};

// All index heads as published, then an eighth of them.
constexpr IndexBenchCase kIndexBenchCases[] = {{32, 1, 1, 16384},  {32, 1, 4, 16384}, {32, 1, 64, 16384}, {32, 16, 1, 16384},
                                               {32, 1, 1, 131072}, {4, 1, 1, 16384},  {4, 64, 1, 16384}};

}  // namespace perigee::ops
