#include "ops/moe_route/moe_route.h"

#include "ops/moe_route/moe_route_cases.h"
#include "ops/op_test.h"

namespace perigee::ops {
namespace {

using testing::view;

template <class Real>
struct Routed {
  std::vector<int32_t> ids;
  std::vector<Real> weights;
};

template <class Real>
Routed<Real> route(const Context& context, const std::vector<Real>& logits,
                   const std::vector<float>& bias, const RouteParams& params) {
  const auto e = static_cast<int64_t>(bias.size());
  const auto t = static_cast<int64_t>(logits.size()) / e;
  Routed<Real> r{std::vector<int32_t>(t * params.active), std::vector<Real>(t * params.active)};
  moe_route(context, view(logits, {t, e}), view(bias, {e}), params, view(r.ids, {t, params.active}),
            view(r.weights, {t, params.active}));
  return r;
}

TEST(MoeRoute, ReferenceOnHandNumbers) {
  // Scores 0.5, 0.75, 0.25; the bias lifts the third above the first.
  const std::vector<double> logits = {0, std::log(3.0), -std::log(3.0)};
  const std::vector<float> bias = {0, 0, 0.375f};
  Routed<double> r = route(testing::reference(), logits, bias, {2, true, 2.0});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 2}));
  EXPECT_NEAR(r.weights[0], 1.5, 1e-15);
  EXPECT_NEAR(r.weights[1], 0.5, 1e-15);
  r = route(testing::reference(), logits, bias, {2, false, 2.0});
  EXPECT_NEAR(r.weights[0], 1.5, 1e-15);
  EXPECT_NEAR(r.weights[1], 0.5, 1e-15);
  r = route(testing::reference(), logits, bias, {3, true, 1.0});
  EXPECT_NEAR(r.weights[0], 0.5, 1e-15);
  EXPECT_NEAR(r.weights[2], 1.0 / 3, 1e-15);
}

TEST(MoeRoute, TiesGoToTheLowestIdAndNanRanksLowest) {
  for (const Isa isa : testing::isas()) {
    const std::vector<float> logits = {1, 2, 2, 1, 2, NAN, -50, -60};
    const std::vector<float> bias(8, 0.0f);
    EXPECT_EQ(route(testing::cpu(isa), logits, bias, {4, true, 1.0}).ids,
              (std::vector<int32_t>{1, 2, 4, 0}));
    const Routed<float> all = route(testing::cpu(isa), logits, bias, {8, true, 1.0});
    EXPECT_EQ(all.ids, (std::vector<int32_t>{1, 2, 4, 0, 3, 6, 7, 5}));
    const std::vector<float> nothing(8, NAN);
    EXPECT_EQ(route(testing::cpu(isa), nothing, bias, {3, true, 1.0}).ids,
              (std::vector<int32_t>{0, 1, 2}));
  }
}

TEST(MoeRoute, StaysWithinTheBoundOfTheReference) {
  for (const RouteCase& c : kRouteTestCases) {
    for (const bool renormalize : {true, false}) {
      const RouteParams params{c.active, renormalize, 1.75};
      const std::vector<float> logits = testing::random_float(1, c.t * c.experts, 2.0);
      const std::vector<float> bias = testing::random_float(2, c.experts, 0.1);
      const Routed<float> got = route(testing::cpu(), logits, bias, params);
      const Routed<double> want = route(testing::reference(), testing::widen(logits), bias, params);
      // Scores carry 3 * 2^-23, the sum one rounding a slot, division, addition and scale one each.
      const double relative = 6 * 0x1p-23 + static_cast<double>(c.active + 3) * 0x1p-24;
      for (int64_t t = 0; t < c.t; ++t) {
        // Two experts may change places only when their exact keys are closer than the scores' error.
        const auto key = [&](int32_t e) {
          return 1 / (1 + std::exp(-double{logits[t * c.experts + e]})) + double{bias[e]};
        };
        bool same = true;
        for (int64_t i = t * c.active; i < (t + 1) * c.active; ++i) {
          same = same && got.ids[i] == want.ids[i];
          ASSERT_NEAR(key(got.ids[i]), key(want.ids[i]), 8 * 0x1p-23) << t;
        }
        for (int64_t i = t * c.active; same && i < (t + 1) * c.active; ++i) {
          ASSERT_NEAR(got.weights[i], want.weights[i], relative * want.weights[i]);
        }
      }
    }
  }
}

TEST(MoeRoute, ARowsBitsDoNotDependOnItsSurroundings) {
  const int64_t experts = 67;
  const int64_t active = 6;
  const std::vector<float> logits = testing::random_float(3, 20 * experts, 2.0);
  const std::vector<float> bias = testing::random_float(4, experts, 0.1);
  testing::expect_rows_independent<float>(
      20, 2 * active, [&](const Context& context, const testing::Batch& batch) {
        const auto t = static_cast<int64_t>(batch.pick.size());
        testing::Rows<float> in(logits, experts, batch.pick, batch.gap);
        testing::Rows<int32_t> ids(t, active, batch.gap);
        testing::Rows<float> weights(t, active, batch.gap + 1);
        {
          testing::OnDevice on(context);
          moe_route(context, on(in.tensor()), on(view(bias, {experts})), {active, true, 2.5}, on(ids.tensor()),
                    on(weights.tensor()));
        }
        std::vector<float> out;
        const std::vector<int32_t> chosen = ids.dense();
        const std::vector<float> w = weights.dense();
        for (int64_t r = 0; r < t; ++r) {
          for (int64_t a = 0; a < active; ++a)
            out.push_back(static_cast<float>(chosen[r * active + a]));
          out.insert(out.end(), w.begin() + r * active, w.begin() + (r + 1) * active);
        }
        return out;
      });
}

TEST(MoeRouteDeathTest, MoreActiveThanExpertsIsABug) {
  const std::vector<float> logits(4);
  const std::vector<float> bias(4);
  EXPECT_DEATH(route(testing::cpu(), logits, bias, {5, true, 1.0}), "active");
}

}  // namespace
}  // namespace perigee::ops
