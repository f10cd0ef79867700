// What    Shapes and seeded inputs of mla for tests and benchmarks.
// Owner   ops/mla tests.
// Threads One.
// Errors  None.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/mla/mla.h"
#include "ops/mla/mla_bench_cases.h"
#include "ops/op_test.h"
#include "ops/page_io/page_io.h"
#include "ops/page_io/page_io_cases.h"

namespace perigee::ops::testing {

// One sequence of `tokens` tokens; the last `rows` of them ask. c = latent width, r = extra dims.
struct MlaCase {
  LatentFormat format;
  int64_t heads, c, r, tokens, rows;
};

inline std::vector<MlaCase> mla_cases() {
  std::vector<MlaCase> out;
  for (const LatentFormat format :
       {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4}) {
    out.push_back({format, 4, 32, 8, 150, 5});
    out.push_back({format, 7, 48, 16, 64, 64});
    out.push_back({format, 1, 16, 0, 1, 1});
    out.push_back({format, 13, 64, 32, 129, 2});
    if (format == LatentFormat::kNvfp4) continue;
    out.push_back({format, 3, 13, 3, 65, 65});
    out.push_back({format, 6, 70, 20, 70, 3});
  }
  return out;
}

struct MlaInputs {
  std::vector<bf16> q, latent, rope;
};

inline MlaInputs mla_inputs(const MlaCase& c, uint64_t seed) {
  return {random_half(seed, c.rows * c.heads * (c.c + c.r), 1.0),
          random_half(seed + 1, c.tokens * c.c, 1.0), random_half(seed + 2, c.tokens * c.r, 1.0)};
}

inline double mla_scale(const MlaCase& c) {
  return 1 / std::sqrt(static_cast<double>(c.c + c.r));
}

}  // namespace perigee::ops::testing
