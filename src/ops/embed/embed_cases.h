// What    Shapes that tests and benchmarks of ops/embed share.
// Owner   ops/embed.
// Threads Constants.
// Errors  None.
#pragma once

#include <cstdint>

namespace perigee::ops {

constexpr int64_t kEmbedBenchRows[] = {1, 64, 2048};
constexpr int64_t kEmbedBenchTable = 20480;  // an eighth of the published vocabulary
constexpr int64_t kEmbedBenchWidth = 7168;

}  // namespace perigee::ops
