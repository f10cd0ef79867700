#include "ops/attn_res/attn_res.h"

#include <gtest/gtest.h>

#include "ops/attn_res/attn_res_cases.h"
#include "ops/op_test.h"

namespace perigee::ops {
namespace {

using testing::Batch;
using testing::kRound16;
using testing::kRound32;
using testing::Rows;
using testing::widen;

void mix_on(const Context& c, std::span<const Tensor> rows, const Tensor& query, double eps, const Tensor& out) {
  testing::OnDevice at(c);
  std::vector<Tensor> there;
  for (const Tensor& row : rows) there.push_back(at(row));
  attn_res_mix(c, there, at(query), eps, at(out));
}

TEST(AttnResReference, HandNumbers) {
  const std::vector<double> a = {3, 4};  // rms sqrt(12.5)
  const std::vector<double> b = {1, -1};
  const std::vector<float> query = {1, 0};
  std::vector<double> out(2);
  const Tensor rows[] = {testing::view(a, {1, 2}), testing::view(b, {1, 2})};
  attn_res_mix(testing::reference(), rows, testing::view(query, {2}), 0,
               testing::view(out, {1, 2}));
  const double weight = 1 / (1 + std::exp(1 - 3 / std::sqrt(12.5)));
  EXPECT_NEAR(out[0], weight * 3 + (1 - weight), 1e-14);
  EXPECT_NEAR(out[1], weight * 4 - (1 - weight), 1e-14);
}

// Largest error of one token's scores and the sum of |a_j V_j| per column, from the doubles
// themselves.
struct Bound {
  double score = 0;
  std::vector<double> magnitude;
};

Bound bound_of(const std::vector<std::vector<double>>& rows, const std::vector<float>& query,
               int64_t token, double eps) {
  const auto width = static_cast<int64_t>(query.size());
  const double n = static_cast<double>(width);
  Bound bound;
  std::vector<double> score;
  for (const std::vector<double>& row : rows) {
    double dot = 0;
    double absolute = 0;
    double square = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double v = row[static_cast<size_t>(token * width + i)];
      const double q = query[static_cast<size_t>(i)];
      dot += v * q;
      absolute += std::abs(v * q);
      square += v * v;
    }
    const double scale = 1 / std::sqrt(square / n + eps);
    score.push_back(dot * scale);
    // A chain of n/16 FMAs and a tree of 4 for the dot; half of that for the root of the squares;
    // the products.
    const double error =
        ((n / 16 + 5) * absolute + (n / 32 + 6) * std::abs(dot)) * scale * kRound32;
    bound.score = std::max(bound.score, error);
  }
  const double highest = *std::max_element(score.begin(), score.end());
  double sum = 0;
  for (double& s : score) {
    s = std::exp(s - highest);
    sum += s;
  }
  bound.magnitude.resize(query.size());
  for (size_t j = 0; j < rows.size(); ++j) {
    for (int64_t i = 0; i < width; ++i) {
      bound.magnitude[static_cast<size_t>(i)] +=
          score[j] / sum * std::abs(rows[j][static_cast<size_t>(token * width + i)]);
    }
  }
  return bound;
}

TEST(AttnRes, IsWithinItsBound) {
  const int64_t tokens = 3;
  for (const AttnResCase& c : kAttnResCases) {
    std::vector<std::vector<bf16>> half;
    std::vector<std::vector<double>> wide;
    std::vector<Rows<bf16>> padded;
    std::vector<Tensor> wide_views;
    std::vector<Tensor> half_views;
    for (int64_t j = 0; j < c.rows; ++j) {
      half.push_back(testing::random_half(static_cast<uint64_t>(j), tokens * c.width,
                                          0.3 * static_cast<double>(j + 1)));
      wide.push_back(widen(half.back()));
      padded.emplace_back(half.back(), c.width, testing::iota(tokens), j % 4);
    }
    for (auto& w : wide) wide_views.push_back(testing::view(w, {tokens, c.width}));
    for (auto& p : padded) half_views.push_back(p.tensor());
    const std::vector<float> query =
        testing::random_float(77, c.width, 2.0 / std::sqrt(static_cast<double>(c.width)));
    std::vector<double> want(static_cast<size_t>(tokens * c.width));
    attn_res_mix(testing::reference(), wide_views, testing::view(query, {c.width}), 1e-5,
                 testing::view(want, {tokens, c.width}));
    std::vector<Bound> bounds;
    for (int64_t t = 0; t < tokens; ++t) bounds.push_back(bound_of(wide, query, t, 1e-5));
    std::vector<Context> contexts;
    for (const Isa isa : testing::isas()) contexts.push_back(testing::cpu(isa, 2));
    if (testing::gpu() != nullptr) contexts.push_back(*testing::gpu());
    for (const Context& context : contexts) {
      Rows<bf16> out(tokens, c.width, 1);
      mix_on(context, half_views, testing::view(query, {c.width}), 1e-5, out.tensor());
      testing::expect_within<bf16>(out.dense(), want, [&](size_t i) {
        const Bound& b = bounds[i / static_cast<size_t>(c.width)];
        // A weight moves by the scores' errors, the subtraction's rounding (scores below 16), exp,
        // sum and division.
        const double relative = 2 * b.score + (16 + 3 + 2 * static_cast<double>(c.rows)) * kRound32;
        return b.magnitude[i % static_cast<size_t>(c.width)] * relative +
               std::abs(want[i]) * kRound16;
      });
    }
  }
}

TEST(AttnRes, OneRowIsItself) {
  const std::vector<bf16> x = testing::random_half(3, 5 * 50, 1.0);
  const std::vector<float> query = testing::random_float(4, 50, 1.0);
  Rows<bf16> in(x, 50, testing::iota(5), 2);
  for (const Context& context : testing::devices()) {
    Rows<bf16> out(5, 50);
    const Tensor row = in.tensor();
    mix_on(context, {&row, 1}, testing::view(query, {50}), 1e-5, out.tensor());
    EXPECT_TRUE(testing::same_bits(out.dense(), x));
  }
}

TEST(AttnRes, NanOfOneTokenStaysThere) {
  std::vector<bf16> x = testing::random_half(3, 2 * 20, 1.0);
  x[3] = to_bf16(NAN);
  const std::vector<float> query = testing::random_float(4, 20, 1.0);
  const Tensor rows[] = {testing::view(x, {2, 20}), testing::view(x, {2, 20})};
  for (const Context& context : testing::devices()) {
    std::vector<bf16> out(x.size());
    mix_on(context, rows, testing::view(query, {20}), 1e-5, testing::view(out, {2, 20}));
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(std::isnan(to_float(out[i])), i < 20);
      if (i >= 20) {
        EXPECT_EQ(out[i].bits, x[i].bits) << "two equal rows are halves of the same value";
      }
    }
  }
}

TEST(AttnRes, RowsAreIndependent) {
  const int64_t tokens = 8;
  for (const AttnResCase c : {AttnResCase{1, 20}, AttnResCase{9, 133}, AttnResCase{18, 31}}) {
    std::vector<std::vector<bf16>> bank;
    for (int64_t j = 0; j < c.rows; ++j) {
      bank.push_back(testing::random_half(static_cast<uint64_t>(j) + 9, tokens * c.width, 1.0));
    }
    const std::vector<float> query = testing::random_float(78, c.width, 0.2);
    testing::expect_rows_independent<bf16>(
        tokens, c.width, [&](const Context& context, const Batch& batch) {
          std::vector<Rows<bf16>> padded;
          std::vector<Tensor> views;
          for (const auto& row : bank) padded.emplace_back(row, c.width, batch.pick, batch.gap);
          for (auto& p : padded) views.push_back(p.tensor());
          Rows<bf16> out(static_cast<int64_t>(batch.pick.size()), c.width, 1);
          mix_on(context, views, testing::view(query, {c.width}), 1e-6, out.tensor());
          return out.dense();
        });
  }
}

}  // namespace
}  // namespace perigee::ops
