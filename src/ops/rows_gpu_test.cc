// The operations on rows of a layer on the GPU: activations, copies, embeddings, routing, permutation and combination
// against the reference inside their bounds, or against the host's very results where the arithmetic is exact.
#include "ops/act/act.h"
#include "ops/act/act_cases.h"
#include "ops/copy/copy.h"
#include "ops/embed/embed.h"
#include "ops/moe_gemm/moe_gemm_cases.h"
#include "ops/moe_permute/moe_permute.h"
#include "ops/moe_permute/moe_permute_cases.h"
#include "ops/moe_route/moe_route.h"
#include "ops/moe_route/moe_route_cases.h"
#include "ops/op_test.h"

namespace perigee::ops {
namespace {

using testing::kRound16;
using testing::kRound32;
using testing::widen;

// Relative error of the approximate exponential, reciprocal and their products (docs/kernels/arithmetic.md).
constexpr double kActError = 4.0e-6;
// The exponent x log2 e is rounded once, which moves the exponential by |x| roundings.
double exponent_error(double x) { return std::abs(x) * kRound32; }

TEST(ActGpu, IsWithinItsBound) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  for (const int64_t width : kActWidths) {
    for (const double scale : {0.1, 3.0, 60.0}) {
      const int64_t rows = 3;
      const auto dims = {rows, width};
      std::vector<float> g = testing::random_float(1, rows * width, scale),
                         u = testing::random_float(2, rows * width, scale);
      std::vector<double> gw = widen(g), uw = widen(u), want(g.size());
      for (const GluParams& params :
           {GluParams{GluKind::kSitu, 4, 25}, GluParams{GluKind::kSitu, 3, 7}, GluParams{GluKind::kSilu}}) {
        std::vector<bf16> got(g.size());
        {
          testing::OnDevice on(*gpu);
          glu(*gpu, on(testing::view(g, dims)), on(testing::view(u, dims)), params, on(testing::view(got, dims)));
        }
        glu(testing::reference(), testing::view(gw, dims), testing::view(uw, dims), params, testing::view(want, dims));
        testing::expect_within<bf16>(got, want, [&](size_t i) {
          return std::abs(want[i]) * (kRound16 + kActError + exponent_error(gw[i])) + 0x1p-120 * std::max(1.0, std::abs(uw[i]));
        });
      }
      std::vector<bf16> a = testing::random_half(3, rows * width, scale),
                        b = testing::random_half(4, rows * width, scale);
      std::vector<double> aw = widen(a), bw = widen(b);
      for (const bool gate : {true, false}) {
        const auto run = [&](const Context& context, const Tensor& x, const Tensor& y, const Tensor& out) {
          gate ? sigmoid_gate(context, x, y, out) : add(context, x, y, out);
        };
        std::vector<bf16> got(a.size());
        {
          testing::OnDevice on(*gpu);
          run(*gpu, on(testing::view(a, dims)), on(testing::view(b, dims)), on(testing::view(got, dims)));
        }
        run(testing::reference(), testing::view(aw, dims), testing::view(bw, dims), testing::view(want, dims));
        testing::expect_within<bf16>(got, want, [&](size_t i) {
          return std::abs(want[i]) * (kRound16 + kActError + exponent_error(bw[i])) +
                 (gate ? 0x1p-120 * std::abs(aw[i]) : 0x1p-126);
        });
      }
    }
  }
}

TEST(CopyGpu, MovesEveryItemAndNothingElse) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  for (const int64_t rows : {int64_t{1}, int64_t{70}}) {
    const int64_t items = 100;  // more than one launch takes
    std::vector<bf16> from = testing::random_half(1, rows * 4096, 1.0), host(from.size(), bf16{0x1234}), there = host;
    for (const bool on_gpu : {false, true}) {
      const Context context = on_gpu ? *gpu : testing::cpu();
      testing::OnDevice on(context);
      const Tensor x = on(testing::view(from, {rows, 4096})),
                   out = on(testing::view(on_gpu ? there : host, {rows, 4096}));
      std::vector<CopyItem> list;
      for (int64_t i = 0; i < items; ++i)
        list.push_back({x.columns(i * 40, 1 + i % 37), out.columns(i * 40 + i % 3, 1 + i % 37)});
      copy(context, list);
    }
    EXPECT_TRUE(testing::same_bits(host, there));
  }
}

TEST(EmbedGpu, TakesTheRowsOfTheIds) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  for (const int64_t width : {1, 33, 256, 7168}) {
    std::vector<bf16> table = testing::random_half(1, 50 * width, 1.0);
    const std::vector<int32_t> ids = {49, 0, 7, 7, 13, 48, 1};
    std::vector<bf16> out[2];
    for (int device = 0; device < 2; ++device) {
      const Context context = device == 1 ? *gpu : testing::cpu();
      out[device].resize(ids.size() * static_cast<size_t>(width));
      testing::OnDevice on(context);
      embed(context, on(testing::view(ids, {7})), on(testing::view(table, {50, width})),
            on(testing::view(out[device], {7, width})));
    }
    EXPECT_TRUE(testing::same_bits(out[0], out[1])) << width;
  }
}

TEST(RouteGpu, ChoosesAsTheReferenceWithinTheErrorOfItsScores) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  for (const RouteCase& c : kRouteTestCases) {
    std::vector<float> logits = testing::random_float(5, c.t * c.experts, 2.0),
                       bias = testing::random_float(6, c.experts, 0.1);
    std::vector<double> wide = widen(logits);
    const RouteParams params = {c.active, true, 2.5};
    const auto pairs = static_cast<size_t>(c.t * c.active);
    std::vector<int32_t> ids(pairs, -1), want_ids(pairs, -1);
    std::vector<float> weights(pairs);
    std::vector<double> want(pairs);
    {
      testing::OnDevice on(*gpu);
      moe_route(*gpu, on(testing::view(logits, {c.t, c.experts})), on(testing::view(bias, {c.experts})), params,
                on(testing::view(ids, {c.t, c.active})), on(testing::view(weights, {c.t, c.active})));
    }
    moe_route(testing::reference(), testing::view(wide, {c.t, c.experts}), testing::view(bias, {c.experts}), params,
              testing::view(want_ids, {c.t, c.active}), testing::view(want, {c.t, c.active}));
    // Drawn logits are further apart than the error of a sigmoid, so the choice is the same.
    EXPECT_EQ(ids, want_ids) << c.experts << " experts";
    for (size_t i = 0; i < pairs; ++i) EXPECT_NEAR(weights[i], want[i], want[i] * 2e-6) << c.experts << " experts";
  }
}

TEST(PermuteGpu, IsTheHostsPermutation) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  for (const MoeCase& c :
       {MoeCase{1, 8, 3, 0, 0}, {1, 896, 16, 0, 0}, {700, 896, 16, 0, 0}, {33, 5, 5, 0, 0}, {2048, 32, 4, 0, 0}}) {
    const std::vector<int32_t> ids = random_experts(3, c);
    std::vector<int32_t> offsets[2], source[2], place[2];
    for (int device = 0; device < 2; ++device) {
      const Context context = device == 1 ? *gpu : testing::cpu();
      offsets[device].assign(static_cast<size_t>(c.experts + 1), -1);
      source[device].assign(ids.size(), -1);
      place[device].assign(ids.size(), -1);
      testing::OnDevice on(context);
      moe_permute(context, on(testing::view(ids, {c.tokens, c.active})), c.experts,
                  on(testing::view(offsets[device], {c.experts + 1})),
                  on(testing::view(source[device], {c.tokens * c.active})),
                  on(testing::view(place[device], {c.tokens, c.active})));
    }
    EXPECT_EQ(offsets[0], offsets[1]);
    EXPECT_EQ(source[0], source[1]);
    EXPECT_EQ(place[0], place[1]);
  }
}

TEST(CombineGpu, IsWithinItsBound) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  for (const CombineCase& c : kCombineTestCases) {
    const int64_t pairs = c.t * c.active;
    std::vector<float> y = testing::random_float(1, pairs * c.width, 2.0),
                       weights = testing::random_float(2, pairs, 0.3);
    std::vector<double> yw = widen(y), ww = widen(weights), want(static_cast<size_t>(c.t * c.width));
    std::vector<int32_t> place(static_cast<size_t>(pairs));
    for (int64_t i = 0; i < pairs; ++i) place[static_cast<size_t>(i)] = static_cast<int32_t>(pairs - 1 - i);
    std::vector<bf16> got(want.size());
    {
      testing::OnDevice on(*gpu);
      moe_combine(*gpu, on(testing::view(y, {pairs, c.width})), on(testing::view(place, {c.t, c.active})),
                  on(testing::view(weights, {c.t, c.active})), on(testing::view(got, {c.t, c.width})));
    }
    moe_combine(testing::reference(), testing::view(yw, {pairs, c.width}), testing::view(place, {c.t, c.active}),
                testing::view(ww, {c.t, c.active}), testing::view(want, {c.t, c.width}));
    testing::expect_within<bf16>(got, want, [&](size_t i) {
      const auto t = static_cast<int64_t>(i) / c.width, column = static_cast<int64_t>(i) % c.width;
      double magnitude = 0;
      for (int64_t a = 0; a < c.active; ++a) {
        const auto pair = static_cast<size_t>(t * c.active + a);
        magnitude += std::abs(ww[pair] * yw[static_cast<size_t>(place[pair] * c.width + column)]);
      }
      return std::abs(want[i]) * kRound16 + 1.1 * static_cast<double>(c.active) * kRound32 * magnitude;
    });
  }
}

}  // namespace
}  // namespace perigee::ops
