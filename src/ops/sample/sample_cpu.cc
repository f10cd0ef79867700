#include <limits>
#include <vector>

#include "ops/sample/sample.h"
#include "ops/sample/sample_rank.h"
#include "ops/sample/sample_simd.h"

namespace perigee::ops::cpu {
namespace {

constexpr int64_t kSplit = 1024;  // columns whose sum is formed alone (docs/numerics.md N8)

}  // namespace

void log_sum_exp(const Context& context, const Tensor& logits, const Tensor& out) {
  const int64_t width = logits.dims[1];
  const int64_t splits = (width + kSplit - 1) / kSplit;
  std::vector<SplitSum> sums(static_cast<size_t>(logits.rows() * splits));
  context.pool->parallel_for(logits.rows() * splits, [&](int64_t begin, int64_t end) {
    with_isa(context.isa, [&]<Isa isa>() {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t column = i % splits * kSplit;
        sums[static_cast<size_t>(i)] = sum_split<isa>(logits.row<float>(i / splits) + column,
                                                      std::min(kSplit, width - column));
      }
    });
  });
  context.pool->parallel_for(logits.rows(), [&](int64_t begin, int64_t end) {
    with_isa(context.isa, [&]<Isa isa>() {
      for (int64_t t = begin; t < end; ++t)
        *out.row<float>(t) = join_splits<isa>(&sums[static_cast<size_t>(t * splits)], splits);
    });
  });
}

void top_logprobs(const Context& context, const Tensor& logits, const Tensor& lse, int64_t n,
                  const Tensor& ids, const Tensor& logprobs) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  context.pool->parallel_for(logits.rows(), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const std::vector<int32_t> top = Ranking(logits.row<float>(t), logits.dims[1]).top(n);
      for (int64_t i = 0; i < n; ++i) {
        const int32_t id = top[static_cast<size_t>(i)];
        const float x = logits.row<float>(t)[id];
        const bool possible = x > kLowest;  // false for NaN
        ids.row<int32_t>(t)[i] = id;
        logprobs.row<float>(t)[i] =
            possible ? std::min(x, std::numeric_limits<float>::max()) - *lse.row<float>(t)
                     : kLowest;
      }
    }
  });
}

}  // namespace perigee::ops::cpu
