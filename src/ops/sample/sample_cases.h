// What    Vocabularies and filter settings that the tests and benchmarks of ops/sample share.
// Owner   ops/sample.
// Threads Constants.
// Errors  None.
#pragma once

#include <cstdint>

#include "ops/sample/sample.h"

namespace perigee::ops {

// One token, widths beside a vector and a split, the published vocabulary.
constexpr int64_t kSampleWidths[] = {1, 2, 15, 16, 17, 1000, 1024, 1025, 5000, 163840};

// temperature, top_p, min_p, top_k
constexpr SampleParams kSampleSettings[] = {
    {1, 1, 0, 0, 0, 0, 0},       {0, 0.5, 0.5, 3, 0, 0, 0},        {1, 1, 0, 1, 0, 0, 0},
    {0.7, 1, 0, 5, 0, 0, 0},     {1, 0.9, 0, 0, 0, 0, 0},          {1, 0, 0, 0, 0, 0, 0},
    {1.5, 0.99, 0, 40, 0, 0, 0}, {1, 1, 0.05, 0, 0, 0, 0},         {2, 0.95, 0.02, 0, 0, 0, 0},
    {1, 1, 1, 0, 0, 0, 0},       {0.3, 0.8, 0.1, 1000000, 0, 0, 0}};

// Rows drawn at once from the published vocabulary.
constexpr int64_t kSampleBenchRows[] = {1, 64};
constexpr int64_t kSampleBenchWidth = 163840;

}  // namespace perigee::ops
