#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/sample/sample.h"
#include "ops/sample/sample_rank.h"
#include "ops/sample/sample_simd.h"

namespace perigee::ops::cpu {
namespace {

constexpr int64_t kSplit = 1024;           // as in log_sum_exp
constexpr int64_t kFirstCandidates = 128;  // most filtered distributions end within these
constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kHighest = std::numeric_limits<float>::max();

// Tokens that may be drawn, with their scaled logits (at most 0) and exponentials.
struct Candidates {
  std::vector<int32_t> ids;
  std::vector<float> scaled;
  std::vector<float> mass;
};

struct RowView {
  const float* logits;
  int64_t width;
  float highest;  // the largest logit, finite
  float factor;   // 1 / temperature
};

template <Isa isa>
void scale(const RowView& row, Candidates& c) {
  std::vector<float> picked(c.ids.size());
  for (size_t i = 0; i < picked.size(); ++i) picked[i] = row.logits[c.ids[i]];
  c.scaled.resize(picked.size());
  c.mass.resize(picked.size());
  scale_logits<isa>(picked.data(), static_cast<int64_t>(picked.size()), row.highest, row.factor,
                    c.scaled.data(), c.mass.data());
}

template <Isa isa>
double total_mass(const RowView& row) {
  float scaled[kSplit];
  float mass[kSplit];
  double total = 0;
  for (int64_t begin = 0; begin < row.width; begin += kSplit) {
    const int64_t n = std::min(kSplit, row.width - begin);
    scale_logits<isa>(row.logits + begin, n, row.highest, row.factor, scaled, mass);
    for (int64_t i = 0; i < n; ++i) total += static_cast<double>(mass[i]);
  }
  return total;
}

// Length of the prefix that top_p and min_p leave of ranked candidates; their number if none of the
// two ends it.
size_t prefix(const SampleParams& p, const Candidates& c, double total) {
  double before = 0;
  for (size_t i = 0; i < c.ids.size(); ++i) {
    const bool reached = p.top_p < 1 && before >= p.top_p * total;
    if (i > 0 && (reached || static_cast<double>(c.mass[i]) < p.min_p)) return i;
    before += static_cast<double>(c.mass[i]);
  }
  return c.ids.size();
}

// Candidates left by the filters, in ascending ids.
template <Isa isa>
Candidates filtered(const SampleParams& p, const RowView& row) {
  Candidates c;
  const bool top_k = p.top_k > 0 && p.top_k < row.width;
  if (!top_k && p.top_p >= 1 && p.min_p == 0) {
    c.ids.resize(static_cast<size_t>(row.width));
    std::iota(c.ids.begin(), c.ids.end(), 0);
  } else {
    const Ranking ranking(row.logits, row.width);
    const int64_t limit = top_k ? p.top_k : row.width;
    double total = top_k || p.top_p >= 1 ? 0 : total_mass<isa>(row);
    int64_t count = top_k ? limit : std::min(limit, kFirstCandidates);
    while (true) {
      c.ids = ranking.top(count);
      scale<isa>(row, c);
      if (top_k) total = std::accumulate(c.mass.begin(), c.mass.end(), 0.0);
      const size_t kept = prefix(p, c, total);
      if (kept < c.ids.size() || count == limit) {
        c.ids.resize(kept);
        break;
      }
      count = std::min(limit, count * 8);
    }
    std::sort(c.ids.begin(), c.ids.end());
  }
  scale<isa>(row, c);
  return c;
}

template <Isa isa>
float log_sum(const std::vector<float>& x) {
  std::vector<SplitSum> splits;
  const auto size = static_cast<int64_t>(x.size());
  for (int64_t begin = 0; begin < size; begin += kSplit) {
    splits.push_back(sum_split<isa>(x.data() + begin, std::min(kSplit, size - begin)));
  }
  return join_splits<isa>(splits.data(), static_cast<int64_t>(splits.size()));
}

template <Isa isa>
Sampled draw(const float* logits, int64_t width, float lse, const SampleParams& p) {
  int64_t best = 0;
  for (int64_t i = 1; i < width; ++i) {
    if (logit_key(logits[i]) > logit_key(logits[best])) best = i;
  }
  if (!(logits[best] > kLowest)) return {0, kLowest, kLowest};
  const float highest = std::min(logits[best], kHighest);
  if (p.temperature == 0) return {static_cast<int32_t>(best), highest - lse, 0};
  const auto factor =
      static_cast<float>(std::min(1 / p.temperature, static_cast<double>(kHighest)));
  const Candidates c = filtered<isa>(p, {logits, width, highest, factor});
  std::vector<float> uniform(c.ids.size());
  std::vector<float> score(c.ids.size());
  const uint64_t key = sample_key(p);
  for (size_t i = 0; i < uniform.size(); ++i) uniform[i] = sample_uniform(key, c.ids[i]);
  add_noise<isa>(c.scaled.data(), uniform.data(), static_cast<int64_t>(score.size()), score.data());
  const auto winner =
      std::max_element(score.begin(), score.end()) - score.begin();  // the first of equal ones
  const auto at = static_cast<size_t>(winner);
  return {c.ids[at], std::min(logits[c.ids[at]], kHighest) - lse,
          c.scaled[at] - log_sum<isa>(c.scaled)};
}

}  // namespace

void sample(const Context& context, const Tensor& logits, std::span<const SampleParams> params,
            std::span<Sampled> sampled) {
  std::vector<float> lse(params.size());
  cpu::log_sum_exp(context, logits, tensor::view(lse.data(), {logits.dims[0]}));
  context.pool->parallel_for(logits.rows(), [&](int64_t begin, int64_t end) {
    with_isa(context.isa, [&]<Isa isa>() {
      for (int64_t t = begin; t < end; ++t) {
        const auto at = static_cast<size_t>(t);
        sampled[at] = draw<isa>(logits.row<float>(t), logits.dims[1], lse[at], params[at]);
      }
    });
  });
}

}  // namespace perigee::ops::cpu
