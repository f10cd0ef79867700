// What    Widths that the tests and benchmarks of ops/norm share.
// Owner   ops/norm.
// Threads Constants.
// Errors  None.
#pragma once

#include <cstdint>

namespace perigee::ops {

// Below, at and beside a vector; a tiny model; the latent and hidden widths of the full models; no
// multiple of 16.
constexpr int64_t kNormWidths[] = {1, 15, 16, 17, 100, 512, 1536, 2304, 7168, 7171};

// Rows of a step; the hidden width, an index key, an eighth of the published KDA heads.
constexpr int64_t kNormBenchRows[] = {1, 64, 2048};
constexpr int64_t kNormBenchWidth = 7168;
constexpr int64_t kLayerNormBenchWidth = 128;
constexpr int64_t kGatedNormBenchHeads = 12;
constexpr int64_t kGatedNormBenchWidth = 128;

}  // namespace perigee::ops
