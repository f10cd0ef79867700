#include "ops/moe_permute/moe_permute.h"

#include <numeric>

#include "ops/moe_permute/moe_permute_cases.h"
#include "ops/op_test.h"

namespace perigee::ops {
namespace {

using testing::view;

struct Grouped {
  std::vector<int32_t> offsets;
  std::vector<int32_t> source;
  std::vector<int32_t> place;
};

Grouped group(const Context& context, const std::vector<int32_t>& ids, int64_t active,
              int64_t experts) {
  const auto n = static_cast<int64_t>(ids.size());
  Grouped g{std::vector<int32_t>(experts + 1, -9), std::vector<int32_t>(n, -9),
            std::vector<int32_t>(n, -9)};
  moe_permute(context, view(ids, {n / active, active}), experts, view(g.offsets, {experts + 1}),
              view(g.source, {n}), view(g.place, {n / active, active}));
  return g;
}

TEST(MoePermute, HandNumbers) {
  for (const Context& context : {testing::reference(), testing::cpu()}) {
    const Grouped g = group(context, {3, 0, 1, 3, 0, 1}, 2, 4);
    EXPECT_EQ(g.offsets, (std::vector<int32_t>{0, 2, 4, 4, 6}));
    EXPECT_EQ(g.source, (std::vector<int32_t>{0, 2, 1, 2, 0, 1}));
    EXPECT_EQ(g.place, (std::vector<int32_t>{4, 0, 2, 5, 1, 3}));
  }
}

TEST(MoePermute, NoTokens) {
  const Grouped g = group(testing::cpu(), {}, 2, 3);
  EXPECT_EQ(g.offsets, (std::vector<int32_t>{0, 0, 0, 0}));
}

TEST(MoePermute, EveryPairIsInItsExpertsGroupOnceInOrder) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const int64_t experts = 1 + static_cast<int64_t>(random_bits(seed, 0) % 40);
    const int64_t active =
        1 + static_cast<int64_t>(random_bits(seed, 1) % std::min<int64_t>(experts, 9));
    const int64_t tokens = static_cast<int64_t>(random_bits(seed, 2) % 30);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> all(experts);
      std::iota(all.begin(), all.end(), 0);
      for (int64_t a = 0; a < active; ++a) {
        const uint64_t pick = random_bits(seed + 1000, t * 16 + a) % all.size();
        ids.push_back(all[pick]);
        all.erase(all.begin() + static_cast<int64_t>(pick));
      }
    }
    const Grouped g = group(testing::cpu(), ids, active, experts);
    ASSERT_EQ(g.offsets[0], 0);
    ASSERT_EQ(g.offsets[experts], tokens * active);
    std::vector<int> seen(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      const int32_t at = g.place[i];
      ASSERT_GE(at, g.offsets[ids[i]]);
      ASSERT_LT(at, g.offsets[ids[i] + 1]);
      ASSERT_EQ(g.source[at], static_cast<int32_t>(i) / active);
      ASSERT_EQ(seen[at]++, 0);
    }
    for (int64_t e = 0; e < experts; ++e) {
      for (int32_t at = g.offsets[e] + 1; at < g.offsets[e + 1]; ++at) {
        ASSERT_LT(g.source[at - 1], g.source[at]) << "seed " << seed;
      }
    }
  }
}

TEST(MoePermuteDeathTest, AnUnknownExpertIsABug) {
  EXPECT_DEATH(group(testing::cpu(), {0, 4}, 2, 4), "id");
  EXPECT_DEATH(group(testing::cpu(), {0, -1}, 2, 4), "id");
}

// Any permutation serves as places.
std::vector<int32_t> shuffled(int64_t n) {
  std::vector<int32_t> out(n);
  std::iota(out.begin(), out.end(), 0);
  for (int64_t i = n - 1; i > 0; --i) std::swap(out[i], out[random_bits(5, i) % (i + 1)]);
  return out;
}

TEST(MoeCombine, ReferenceOnHandNumbers) {
  const std::vector<double> y = {1, 2, 10, 20, 100, 200, 1000, 2000};
  const std::vector<int32_t> place = {2, 0, 1, 3};
  const std::vector<double> weights = {0.5, 2, 1, -1};
  std::vector<double> out(4);
  moe_combine(testing::reference(), view(y, {4, 2}), view(place, {2, 2}), view(weights, {2, 2}),
              view(out, {2, 2}));
  EXPECT_EQ(out, (std::vector<double>{52, 104, -990, -1980}));
}

TEST(MoeCombine, StaysWithinTheBoundOfTheReference) {
  for (const CombineCase& c : kCombineTestCases) {
    const std::vector<float> y = testing::random_float(6, c.t * c.active * c.width, 1.0);
    const std::vector<float> weights = testing::random_float(7, c.t * c.active, 0.5);
    const std::vector<int32_t> place = shuffled(c.t * c.active);
    std::vector<double> want(c.t * c.width);
    moe_combine(testing::reference(), view(testing::widen(y), {c.t * c.active, c.width}),
                view(place, {c.t, c.active}), view(testing::widen(weights), {c.t, c.active}),
                view(want, {c.t, c.width}));
    std::vector<bf16> got(c.t * c.width);
    moe_combine(testing::cpu(), view(y, {c.t * c.active, c.width}), view(place, {c.t, c.active}),
                view(weights, {c.t, c.active}), view(got, {c.t, c.width}));
    testing::expect_within(got, want, [&](size_t i) {
      const auto t = static_cast<int64_t>(i) / c.width;
      double magnitude = 0;
      for (int64_t a = 0; a < c.active; ++a) {
        magnitude +=
            std::abs(double{weights[t * c.active + a]} *
                     y[place[t * c.active + a] * c.width + static_cast<int64_t>(i) % c.width]);
      }
      const double sum_error = static_cast<double>(c.active) * testing::kRound32 * magnitude;
      return sum_error + testing::kRound16 * (std::abs(want[i]) + sum_error);
    });
  }
}

TEST(MoeCombine, ARowsBitsDoNotDependOnItsSurroundings) {
  const int64_t active = 5;
  const int64_t width = 530;
  const std::vector<float> y = testing::random_float(8, 12 * active * width, 1.0);
  const std::vector<float> weights = testing::random_float(9, 12 * active, 0.5);
  testing::expect_rows_independent<bf16>(
      12, width, [&](const Context& context, const testing::Batch& batch) {
        const auto t = static_cast<int64_t>(batch.pick.size());
        const std::vector<int32_t> place = shuffled(t * active);
        std::vector<int64_t> from(t * active);
        for (int64_t i = 0; i < t * active; ++i) {
          from[place[i]] = batch.pick[i / active] * active + i % active;
        }
        testing::Rows<float> rows(y, width, from, batch.gap);
        testing::Rows<float> w(weights, active, batch.pick, batch.gap);
        testing::Rows<bf16> out(t, width, batch.gap);
        {
          testing::OnDevice on(context);
          moe_combine(context, on(rows.tensor()), on(view(place, {t, active})), on(w.tensor()), on(out.tensor()));
        }
        return out.dense();
      });
}

}  // namespace
}  // namespace perigee::ops
