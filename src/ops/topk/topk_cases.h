// What    Shapes that tests and benchmarks of ops/topk share.
// Owner   ops/topk.
// Threads Constants.
// Errors  None.
#pragma once

#include <cstdint>

namespace perigee::ops {

constexpr int64_t kTopkBenchK = 2048;  // as published

struct TopkBenchCase {
  int64_t rows;  // one of each sequence
  int64_t tokens;
};

constexpr TopkBenchCase kTopkBenchCases[] = {{1, 4096}, {1, 16384}, {64, 16384}, {1, 131072}, {1, 1048576}};

}  // namespace perigee::ops
