// What    Shapes that the tests and benchmarks of ops/conv1d share.
// Owner   ops/conv1d.
// Threads Constants.
// Errors  None.
#pragma once

#include <cstdint>

namespace perigee::ops {

struct ConvCase {
  int64_t rows;
  int64_t channels;
  int64_t width;
};

// Fewer rows than taps, one row, one channel, blocks that end inside a vector, the published width.
constexpr ConvCase kConvCases[] = {{0, 5, 4},   {1, 1, 4},    {2, 16, 4},   {3, 17, 4},
                                   {9, 128, 4}, {7, 129, 4},  {20, 300, 4}, {5, 40, 1},
                                   {6, 33, 2},  {40, 20, 16}, {11, 777, 3}};

// Decode and prefill of `sequences` times `rows` rows, over the queries, keys and values of an eighth of Kimi K3's KDA heads.
struct ConvBenchCase {
  int64_t sequences;
  int64_t rows;
  int64_t position;
  int64_t channels;
  int64_t width;
};
constexpr ConvBenchCase kConvBenchCases[] = {
    {1, 1, 8, 4608, 4}, {64, 1, 8, 4608, 4}, {256, 1, 8, 4608, 4}, {1, 2048, 0, 4608, 4}};

}  // namespace perigee::ops
