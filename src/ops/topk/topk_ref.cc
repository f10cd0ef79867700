#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/topk/topk.h"

namespace perigee::ops::ref {
namespace {

// Whether position a comes before position b.
bool before(const double* scores, int32_t a, int32_t b) {
  const bool nan_a = std::isnan(scores[a]);
  const bool nan_b = std::isnan(scores[b]);
  if (nan_a != nan_b) return nan_b;
  if (!nan_a && scores[a] != scores[b]) return scores[a] > scores[b];
  return a < b;
}

}  // namespace

void topk(const Context&, const Tensor& scores, const Tensor& lengths, int64_t k, const Tensor& out,
          const Tensor& counts) {
  for (int64_t t = 0; t < scores.rows(); ++t) {
    const int64_t length = lengths.as<int32_t>()[t];
    const int64_t count = std::min(length, k);
    const double* row = scores.row<double>(t);
    std::vector<int32_t> positions(static_cast<size_t>(length));
    std::iota(positions.begin(), positions.end(), 0);
    if (length > k) {
      std::nth_element(positions.begin(), positions.begin() + k, positions.end(),
                       [&](int32_t a, int32_t b) { return before(row, a, b); });
      std::sort(positions.begin(), positions.begin() + k);
    }
    int32_t* to = out.row<int32_t>(t);
    std::copy_n(positions.begin(), count, to);
    std::fill(to + count, to + k, -1);
    counts.as<int32_t>()[t] = static_cast<int32_t>(count);
  }
}

}  // namespace perigee::ops::ref
