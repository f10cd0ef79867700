// What    Widths and special operands that the tests and benchmarks of ops/act share.
// Owner   ops/act.
// Threads Constants.
// Errors  None.
#pragma once

#include <cmath>
#include <cstdint>

namespace perigee::ops {

constexpr int64_t kActWidths[] = {1, 15, 16, 17, 1024, 1025, 3072, 6151};

// Rows of a step and the widths that Kimi K3 applies them to: its experts, the output gate, the residual.
constexpr int64_t kActBenchRows[] = {1, 64, 2048};
constexpr int64_t kGluBenchWidth = 3072;
constexpr int64_t kGateBenchWidth = 1536;
constexpr int64_t kAddBenchWidth = 7168;

// Where tanh and the sigmoid saturate, change their formula or meet the edges of BF16.
constexpr float kActSpecials[] = {0.0f,  -0.0f, 1e-30f,  -1e-30f,  0.62f,    -0.62f,   2.5f,
                                  -2.5f, 15.6f, -15.6f,  88.0f,    -88.0f,   89.0f,    -89.0f,
                                  1e4f,  -1e4f, 3.3e38f, -3.3e38f, INFINITY, -INFINITY};

}  // namespace perigee::ops
