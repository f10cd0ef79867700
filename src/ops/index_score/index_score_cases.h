// What    Shapes and seeded inputs of index_score for tests and benchmarks.
// Owner   ops/index_score tests.
// Threads One.
// Errors  None.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/index_score/index_score.h"
#include "ops/index_score/index_score_bench_cases.h"
#include "ops/op_test.h"
#include "ops/page_io/page_io.h"
#include "ops/page_io/page_io_cases.h"

namespace perigee::ops::testing {

// One sequence of `tokens` tokens; the last `rows` of them ask.
struct IndexCase {
  KeyFormat format;
  int64_t heads, width, tokens, rows;
};

inline std::vector<IndexCase> index_cases() {
  std::vector<IndexCase> out;
  for (const KeyFormat format : {KeyFormat::kBf16, KeyFormat::kFp8, KeyFormat::kMxfp4}) {
    out.push_back({format, 4, 32, 150, 3});
    out.push_back({format, 32, 128, 130, 2});
    out.push_back({format, 1, 64, 64, 64});
    out.push_back({format, 7, 96, 1, 1});
    out.push_back({format, 96, 64, 70, 3});
    if (format == KeyFormat::kMxfp4) continue;
    out.push_back({format, 3, 7, 65, 65});
    out.push_back({format, 5, 40, 70, 9});
    out.push_back({format, 2, 130, 66, 5});
    out.push_back({format, 3, 300, 66, 40});
  }
  return out;
}

struct IndexInputs {
  std::vector<bf16> q, gates, keys;
};

inline IndexInputs index_inputs(const IndexCase& c, uint64_t seed) {
  return {random_half(seed, c.rows * c.heads * c.width, 1.0),
          random_half(seed + 1, c.rows * c.heads, 1.0),
          random_half(seed + 2, c.tokens * c.width, 1.0)};
}

}  // namespace perigee::ops::testing
