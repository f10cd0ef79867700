// Draws: filters and noise against the reference, frequencies against probabilities, and what the
// noise is keyed by.
#include <gtest/gtest.h>

#include <map>

#include "ops/op_test.h"
#include "ops/sample/sample.h"
#include "ops/sample/sample_cases.h"

namespace perigee::ops {
namespace {

using testing::kRound32;
using testing::widen;

TEST(SampleDraw, FollowsTheReference) {
  const int64_t rows = 24;
  int64_t compared = 0;
  for (const int64_t width : {1, 2, 17, 300, 2000}) {
    std::vector<float> x = testing::random_float(static_cast<uint64_t>(width), rows * width, 3.0);
    for (size_t i = 0; i < x.size(); i += 5) x[i] = std::round(x[i] * 2) / 2;  // exact ties
    if (width > 4) x[3] = -INFINITY;
    if (width > 4) x[4] = NAN;
    const std::vector<double> wide = widen(x);
    for (const SampleParams& setting : kSampleSettings) {
      std::vector<SampleParams> params(static_cast<size_t>(rows), setting);
      for (size_t i = 0; i < params.size(); ++i) params[i].position = static_cast<int64_t>(i);
      std::vector<Sampled> want(params.size());
      std::vector<Sampled> got(params.size());
      sample(testing::reference(), testing::view(wide, {rows, width}), params, want);
      sample(testing::cpu(), testing::view(x, {rows, width}), params, got);
      for (size_t i = 0; i < params.size(); ++i) {
        // Scores differ by a few roundings of numbers below 64; none of these rows has two best
        // scores that close, and no cumulative probability that close to top_p.
        ASSERT_EQ(got[i].id, want[i].id) << "row " << i << " of width " << width;
        const double slack =
            (64 + 140) * kRound32 + 64 / std::max(setting.temperature, 0.1) * kRound32;
        EXPECT_NEAR(got[i].logprob, want[i].logprob, slack);
        EXPECT_NEAR(got[i].processed_logprob, want[i].processed_logprob, slack);
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 5 * rows * static_cast<int64_t>(std::size(kSampleSettings)));
}

// Ids that can be drawn at all, found by drawing at many positions.
std::map<int32_t, int64_t> draw_many(const std::vector<float>& x, SampleParams p, int64_t draws) {
  std::map<int32_t, int64_t> counts;
  const auto width = static_cast<int64_t>(x.size());
  const int64_t batch = 500;
  std::vector<float> rows;
  for (int64_t i = 0; i < batch; ++i) rows.insert(rows.end(), x.begin(), x.end());
  std::vector<SampleParams> params(static_cast<size_t>(batch), p);
  std::vector<Sampled> sampled(params.size());
  for (int64_t begin = 0; begin < draws; begin += batch) {
    for (int64_t i = 0; i < batch; ++i) params[static_cast<size_t>(i)].position = begin + i;
    sample(testing::cpu(), testing::view(rows, {batch, width}), params, sampled);
    for (const Sampled& s : sampled) ++counts[s.id];
  }
  return counts;
}

// Pearson's statistic; the seed is fixed, so the test is not a matter of luck once it passes.
double chi_square(const std::map<int32_t, int64_t>& counts, const std::map<int32_t, double>& p,
                  int64_t draws) {
  double sum = 0;
  int64_t seen = 0;
  for (const auto& [id, probability] : p) {
    const double expected = probability * static_cast<double>(draws);
    const auto found = counts.find(id);
    const double count = found == counts.end() ? 0.0 : static_cast<double>(found->second);
    sum += (count - expected) * (count - expected) / expected;
    seen += static_cast<int64_t>(count);
  }
  EXPECT_EQ(seen, draws) << "an id outside the filters was drawn";
  return sum;
}

// Upper quantile for a probability of 1e-4 (Wilson, Hilferty 1931).
double quantile(double degrees) {
  const double t = 2 / (9 * degrees);
  const double root = 1 - t + 3.719 * std::sqrt(t);
  return degrees * root * root * root;
}

TEST(SampleDraw, FrequenciesAreTheProbabilities) {
  const std::vector<float> x = {1.0f, -0.5f, 2.0f, 0.25f, -3.0f, 1.0f, 0.0f, -INFINITY};
  const int64_t draws = 20000;
  struct Case {
    SampleParams params;
    std::vector<int32_t> kept;
  };
  const Case cases[] = {
      {{1, 1, 0, 0, 7, 0, 0}, {0, 1, 2, 3, 4, 5, 6}},
      {{0.5, 1, 0, 0, 7, 0, 1}, {0, 1, 2, 3, 4, 5, 6}},
      {{3, 1, 0, 0, 8, 0, 0}, {0, 1, 2, 3, 4, 5, 6}},
      {{1, 1, 0, 2, 7, 0, 0}, {0, 2}},       // the tie of 0 and 5 goes to the lower id
      {{1, 0.8, 0, 0, 7, 0, 0}, {}},         // computed below
      {{1, 1, 0.3, 0, 7, 0, 0}, {0, 2, 5}},  // e^-1 is above 0.3, e^-1.75 below
  };
  for (const Case& c : cases) {
    double total = 0;
    for (const float v : x) total += std::exp(v);
    std::vector<int32_t> kept = c.kept;
    if (c.params.top_p < 1) {  // the shortest prefix that reaches top_p
      kept.clear();
      double before = 0;
      for (const int32_t id : {2, 0, 5, 3, 6, 1, 4}) {
        if (before >= c.params.top_p * total) break;
        kept.push_back(id);
        before += std::exp(x[static_cast<size_t>(id)]);
      }
    }
    double mass = 0;
    std::map<int32_t, double> p;
    for (const int32_t id : kept)
      mass += std::exp(x[static_cast<size_t>(id)] / c.params.temperature);
    for (const int32_t id : kept)
      p[id] = std::exp(x[static_cast<size_t>(id)] / c.params.temperature) / mass;
    const double statistic = chi_square(draw_many(x, c.params, draws), p, draws);
    EXPECT_LT(statistic, quantile(static_cast<double>(kept.size()) - 1))
        << kept.size() << " ids kept";
  }
}

TEST(SampleDraw, RareTokensKeepTheirProbability) {
  // 4096 equal tokens of 2^-16 each beside one of 15/16: the noise's upper tail decides.
  std::vector<float> x(4097, 0.0f);
  x[17] = static_cast<float>(std::log(65536.0 * 15 / 16));
  const int64_t draws = 5000;
  const std::map<int32_t, int64_t> counts = draw_many(x, {1, 1, 0, 0, 3, 0, 0}, draws);
  int64_t rare = 0;
  for (const auto& [id, count] : counts) rare += id == 17 ? 0 : count;
  const double expected = static_cast<double>(draws) / 16;
  EXPECT_LT(std::abs(static_cast<double>(rare) - expected), 4 * std::sqrt(expected * 15 / 16));
}

TEST(SampleDraw, NoiseIsKeyedBySeedChoicePositionAndId) {
  const std::vector<float> x(1000, 0.0f);
  const auto one = [&](uint64_t seed, int64_t choice, int64_t position) {
    const SampleParams p = {1, 1, 0, 0, seed, position, choice};
    Sampled s;
    sample(testing::cpu(), testing::view(x, {1, 1000}), {&p, 1}, {&s, 1});
    return s.id;
  };
  std::map<int32_t, int64_t> ids;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (int64_t choice = 0; choice < 4; ++choice) {
      for (int64_t position = 0; position < 4; ++position) {
        ++ids[one(seed, choice, position)];
        EXPECT_EQ(one(seed, choice, position), one(seed, choice, position));
      }
    }
  }
  EXPECT_GT(ids.size(), 50u);  // 64 draws of 1000 ids: 62 different ones expected
  // A token's noise does not depend on the others: removing every loser leaves the winner.
  std::vector<float> few(1000, -INFINITY);
  const int32_t winner = one(5, 0, 9);
  for (int32_t i = 0; i < 1000; i += 7) few[static_cast<size_t>(i)] = 0;
  few[static_cast<size_t>(winner)] = 0;
  const SampleParams p = {1, 1, 0, 0, 5, 9, 0};
  Sampled s;
  sample(testing::cpu(), testing::view(few, {1, 1000}), {&p, 1}, {&s, 1});
  EXPECT_EQ(s.id, winner);
}

TEST(SampleDraw, UniformStaysInsideItsInterval) {
  float lowest = 1;
  float highest = 0;
  double sum = 0;
  for (int32_t id = 0; id < 200000; ++id) {
    const float v = sample_uniform(42, id);
    lowest = std::min(lowest, v);
    highest = std::max(highest, v);
    sum += v;
  }
  EXPECT_GT(lowest, 0.0f);
  EXPECT_LT(highest, 1.0f);
  EXPECT_NEAR(sum / 200000, 0.5, 4 / std::sqrt(12.0 * 200000));
}

}  // namespace
}  // namespace perigee::ops
