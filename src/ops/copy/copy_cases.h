// What    Shapes that tests and benchmarks of ops/copy share.
// Owner   ops/copy.
// Threads Constants.
// Errors  None.
#pragma once

#include <cstdint>

namespace perigee::ops {

constexpr int64_t kCopyBenchRows[] = {1, 64, 2048};
constexpr int64_t kCopyBenchWidth = 7168;  // the published hidden width

}  // namespace perigee::ops
