// What    The first m ids of a row by (logit descending, id ascending), for any m, from one
//         histogram of the row.
// Owner   ops/sample (CPU).
// Threads One owner; needs denormals flushed, as inside ThreadPool::parallel_for.
// Errors  None.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace perigee::ops::cpu {

// Integers that order as the logits do: NaN as -inf, -0 as 0.
inline uint32_t logit_key(float x) {
  if (x != x) x = -__builtin_inff();
  x = x + 0.0f;
  uint32_t u;
  std::memcpy(&u, &x, sizeof(u));
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

class Ranking {
 public:
  Ranking(const float* logits, int64_t n) : keys_(static_cast<size_t>(n)) {
    for (int64_t i = 0; i < n; ++i) keys_[static_cast<size_t>(i)] = logit_key(logits[i]);
    if (n < kSmall) return;
    histogram_.resize(size_t{1} << (32 - kShift));
    for (const uint32_t key : keys_) ++histogram_[key >> kShift];
  }

  std::vector<int32_t> top(int64_t m) const {
    // The lowest bucket that the first m reach into; without a histogram every key is a candidate.
    int64_t above = 0;
    size_t bucket = histogram_.size();
    while (bucket > 0 && above < m) above += histogram_[--bucket];
    std::vector<uint64_t> order;  // ascending: inverted key, then id
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (keys_[i] >> kShift >= bucket) order.push_back(uint64_t{~keys_[i]} << 32 | i);
    }
    const auto count = std::min(order.size(), static_cast<size_t>(m));
    const auto end = order.begin() + static_cast<int64_t>(count);
    if (count < order.size()) std::nth_element(order.begin(), end, order.end());
    std::sort(order.begin(), end);
    std::vector<int32_t> ids(count);
    for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(order[i] & 0xffffffffu);
    return ids;
  }

 private:
  static constexpr int kShift = 20;        // sign, exponent and three bits of the fraction
  static constexpr int64_t kSmall = 4096;  // shorter rows are ranked whole
  std::vector<uint32_t> keys_;
  std::vector<int64_t> histogram_;
};

}  // namespace perigee::ops::cpu
