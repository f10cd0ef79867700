#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/sample/sample.h"

namespace perigee::ops::ref {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> clean_row(const Tensor& logits, int64_t t) {
  const double* row = logits.row<double>(t);
  std::vector<double> x(row, row + logits.dims[1]);
  for (double& v : x) {
    if (std::isnan(v)) v = -kInfinity;
    v = std::min(v, static_cast<double>(std::numeric_limits<float>::max()));
  }
  return x;
}

double lse_of(const std::vector<double>& x) {
  const double highest = *std::max_element(x.begin(), x.end());
  if (highest == -kInfinity) return highest;
  double sum = 0;
  for (const double v : x) sum += std::exp(v - highest);
  return highest + std::log(sum);
}

double logprob_of(double x, double lse) {
  return x == -kInfinity ? x : x - lse;
}

// All ids by (logit descending, id ascending).
std::vector<int32_t> ranked(const std::vector<double>& x) {
  std::vector<int32_t> ids(x.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)];
  });
  return ids;
}

// Keeps the prefix of ranked ids that the filters leave; y are the scaled logits, at most 0.
void filter(const SampleParams& p, const std::vector<double>& y, std::vector<int32_t>& ids) {
  if (p.top_k > 0) ids.resize(std::min(ids.size(), static_cast<size_t>(p.top_k)));
  const auto mass = [&](int32_t id) { return std::exp(y[static_cast<size_t>(id)]); };
  double total = 0;
  for (const int32_t id : ids) total += mass(id);
  double before = 0;
  size_t kept = 0;
  for (const int32_t id : ids) {
    const bool reached = p.top_p < 1 && before >= p.top_p * total;
    if (kept > 0 && (reached || mass(id) < p.min_p)) break;
    before += mass(id);
    ++kept;
  }
  ids.resize(kept);
}

Sampled draw(const std::vector<double>& x, const SampleParams& p) {
  const double lse = lse_of(x);
  std::vector<int32_t> ids = ranked(x);
  const double highest = x[static_cast<size_t>(ids[0])];
  if (highest == -kInfinity) return {0, -kInfinity, -kInfinity};
  if (p.temperature == 0) return {ids[0], highest - lse, 0};
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    y[i] = x[i] == highest ? 0 : (x[i] - highest) / p.temperature;
  filter(p, y, ids);
  Sampled best;
  double best_score = -kInfinity;
  std::vector<double> kept;
  std::sort(ids.begin(), ids.end());
  for (const int32_t id : ids) {
    const double v = sample_uniform(sample_key(p), id);
    const double score = y[static_cast<size_t>(id)] - std::log(-std::log1p(-v));
    kept.push_back(y[static_cast<size_t>(id)]);
    if (score > best_score) {
      best_score = score;
      best.id = id;
    }
  }
  best.logprob = x[static_cast<size_t>(best.id)] - lse;
  best.processed_logprob = y[static_cast<size_t>(best.id)] - lse_of(kept);
  return best;
}

}  // namespace

void log_sum_exp(const Tensor& logits, const Tensor& out) {
  for (int64_t t = 0; t < logits.rows(); ++t) *out.row<double>(t) = lse_of(clean_row(logits, t));
}

void top_logprobs(const Tensor& logits, const Tensor& lse, int64_t n, const Tensor& ids,
                  const Tensor& logprobs) {
  for (int64_t t = 0; t < logits.rows(); ++t) {
    const std::vector<double> x = clean_row(logits, t);
    const std::vector<int32_t> order = ranked(x);
    for (int64_t i = 0; i < n; ++i) {
      const int32_t id = order[static_cast<size_t>(i)];
      ids.row<int32_t>(t)[i] = id;
      logprobs.row<double>(t)[i] = logprob_of(x[static_cast<size_t>(id)], *lse.row<double>(t));
    }
  }
}

void sample(const Tensor& logits, std::span<const SampleParams> params,
            std::span<Sampled> sampled) {
  for (int64_t t = 0; t < logits.rows(); ++t) {
    sampled[static_cast<size_t>(t)] = draw(clean_row(logits, t), params[static_cast<size_t>(t)]);
  }
}

}  // namespace perigee::ops::ref
