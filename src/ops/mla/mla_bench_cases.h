// What    Shapes of mla that benchmarks and tests share; apart from mla_cases.h, which needs GoogleTest.
// Owner   ops/mla.
// Threads Constants.
// Errors  None.
#pragma once

#include <cstdint>

namespace perigee::ops {

constexpr int64_t kMlaBenchLatent = 512;  // C and r as published
constexpr int64_t kMlaBenchRope = 64;
constexpr int64_t kMlaBenchSelected = 2048;

// The last `rows` rows of each of `sequences` sequences of `tokens` tokens; selected: a row sees kMlaBenchSelected positions.
struct MlaBenchCase {
  int64_t heads;
  int64_t sequences;
  int64_t rows;
  int64_t tokens;
  bool selected;
};

// All heads of Kimi K3, an eighth of them in decode steps, few heads.
constexpr MlaBenchCase kMlaBenchCases[] = {
    {96, 1, 1, 4096, true}, {96, 1, 8, 4096, true},   {96, 1, 16, 2048, false}, {12, 1, 1, 4096, true},
    {12, 64, 1, 4096, true}, {12, 64, 1, 2048, false}, {4, 1, 1, 2048, false},   {4, 1, 512, 2048, false}};

}  // namespace perigee::ops
