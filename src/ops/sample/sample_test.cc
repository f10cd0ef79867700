#include "ops/sample/sample.h"

#include <gtest/gtest.h>

#include "ops/op_test.h"
#include "ops/sample/sample_cases.h"
#include "ops/sample/sample_rank.h"

namespace perigee::ops {
namespace {

using testing::Batch;
using testing::kRound32;
using testing::Rows;
using testing::widen;

constexpr float kInf = INFINITY;

TEST(SampleReference, HandNumbers) {
  const std::vector<double> x = {std::log(1.0), std::log(2.0), std::log(5.0), -INFINITY};
  std::vector<double> lse(1);
  log_sum_exp(testing::reference(), testing::view(x, {1, 4}), testing::view(lse, {1}));
  EXPECT_NEAR(lse[0], std::log(8.0), 1e-15);
  std::vector<int32_t> ids(4);
  std::vector<double> logprobs(4);
  top_logprobs(testing::reference(), testing::view(x, {1, 4}), testing::view(lse, {1}), 4,
               testing::view(ids, {1, 4}), testing::view(logprobs, {1, 4}));
  EXPECT_EQ(ids, (std::vector<int32_t>{2, 1, 0, 3}));
  EXPECT_NEAR(logprobs[0], std::log(5.0 / 8), 1e-15);
  EXPECT_EQ(logprobs[3], -INFINITY);

  SampleParams greedy;
  greedy.temperature = 0;
  SampleParams two;  // only ids 2 and 1 are left: 5/7 and 2/7
  two.top_k = 2;
  const std::vector<double> rows = {x[0], x[1], x[2], x[3], x[0], x[1], x[2], x[3]};
  const SampleParams params[] = {greedy, two};
  Sampled sampled[2];
  sample(testing::reference(), testing::view(rows, {2, 4}), params, sampled);
  EXPECT_EQ(sampled[0].id, 2);
  EXPECT_EQ(sampled[0].processed_logprob, 0);
  EXPECT_NEAR(sampled[0].logprob, std::log(5.0 / 8), 1e-15);
  ASSERT_TRUE(sampled[1].id == 2 || sampled[1].id == 1);
  EXPECT_NEAR(sampled[1].processed_logprob, std::log(sampled[1].id == 2 ? 5.0 / 7 : 2.0 / 7),
              1e-15);
}

TEST(Sample, LogSumExpIsWithinItsBound) {
  for (const int64_t width : kSampleWidths) {
    const std::vector<float> x =
        testing::random_float(static_cast<uint64_t>(width), 2 * width, 6.0);
    std::vector<double> wide = widen(x);
    std::vector<double> want(2);
    log_sum_exp(testing::reference(), testing::view(wide, {2, width}), testing::view(want, {2}));
    for (const Isa isa : testing::isas()) {
      if (isa == Isa::kGeneric && width > 10000)
        continue;  // the same bits, proved below at smaller widths
      Rows<float> in(x, width, {0, 1}, 3);
      std::vector<float> out(2);
      log_sum_exp(testing::cpu(isa, 2), in.tensor(), testing::view(out, {2}));
      testing::expect_within<float>(out, want, [&](size_t i) {
        // Differences x - max are rounded (|x| below 64); 64 additions in a split and 4 in its
        // tree; the joins; exp, log.
        const double splits = std::ceil(static_cast<double>(width) / 1024);
        return (64 + 64 + 4 + 2 * splits + 3 + 3 + 4 + 1) * kRound32 + std::abs(want[i]) * kRound32;
      });
    }
  }
}

TEST(Sample, SpecialLogitsAreDefined) {
  const float nan = NAN;
  const std::vector<float> x = {nan,  1.0f,  -kInf, 1.0f,   // NaN beside a tie
                                nan,  nan,   -kInf, -kInf,  // nothing possible
                                kInf, 0.0f,  kInf,  1.0f,   // infinities tie at the largest number
                                0.0f, -0.0f, -1.0f, nan};   // zeros of both signs tie
  for (const Isa isa : testing::isas()) {
    std::vector<float> lse(4);
    log_sum_exp(testing::cpu(isa), testing::view(x, {4, 4}), testing::view(lse, {4}));
    EXPECT_NEAR(lse[0], 1 + std::log(2.0), 4 * kRound32);
    EXPECT_EQ(lse[1], -kInf);
    EXPECT_EQ(lse[2], std::numeric_limits<float>::max());
    EXPECT_NEAR(lse[3], std::log(2 + std::exp(-1.0)), 4 * kRound32);
    std::vector<int32_t> ids(16);
    std::vector<float> logprobs(16);
    top_logprobs(testing::cpu(isa), testing::view(x, {4, 4}), testing::view(lse, {4}), 4,
                 testing::view(ids, {4, 4}), testing::view(logprobs, {4, 4}));
    EXPECT_EQ(ids, (std::vector<int32_t>{1, 3, 0, 2, 0, 1, 2, 3, 0, 2, 3, 1, 0, 1, 2, 3}));
    EXPECT_EQ(logprobs[2], -kInf);
    EXPECT_EQ(logprobs[4], -kInf);
    EXPECT_EQ(logprobs[8], 0.0f);
    for (SampleParams p : kSampleSettings) {
      const SampleParams params[] = {p, p, p, p};
      Sampled got[4];
      sample(testing::cpu(isa), testing::view(x, {4, 4}), params, got);
      EXPECT_TRUE(got[0].id == 1 || got[0].id == 3);
      EXPECT_EQ(got[1].id, 0);
      EXPECT_EQ(got[1].logprob, -kInf);
      EXPECT_EQ(got[1].processed_logprob, -kInf);
      EXPECT_TRUE(got[2].id == 0 || got[2].id == 2);
      const bool one = p.temperature == 0 || p.top_k == 1 || p.top_p == 0;
      if (one) {
        EXPECT_EQ(got[0].id, 1);
        EXPECT_EQ(got[2].id, 0);
        EXPECT_EQ(got[3].id, 0);
        EXPECT_EQ(got[0].processed_logprob, 0.0);
      }
    }
  }
}

TEST(Sample, RankingIsASort) {
  for (const int64_t width : {1, 7, 500, 3000, 9000}) {
    std::vector<float> x = testing::random_float(static_cast<uint64_t>(width), width, 3.0);
    for (size_t i = 0; i < x.size(); i += 3) x[i] = std::round(x[i]);  // ties
    if (width > 10) x[5] = NAN;
    FlushDenormals flush;
    std::vector<int32_t> want;
    for (int64_t i = 0; i < width; ++i) want.push_back(static_cast<int32_t>(i));
    const auto value = [&](int32_t i) {
      const float v = x[static_cast<size_t>(i)];
      return v == v ? v : -kInf;
    };
    std::stable_sort(want.begin(), want.end(),
                     [&](int32_t a, int32_t b) { return value(a) > value(b); });
    const cpu::Ranking ranking(x.data(), width);
    for (const int64_t m : {int64_t{0}, int64_t{1}, width / 3, width - 1, width}) {
      EXPECT_EQ(ranking.top(m), std::vector<int32_t>(want.begin(), want.begin() + m));
    }
  }
}

TEST(Sample, RowsAreIndependent) {
  const int64_t rows = 11;  // one for each setting
  for (const int64_t width : {3, 1030}) {
    const std::vector<float> x = testing::random_float(5, rows * width, 3.0);
    testing::expect_rows_independent<double>(
        rows, 10, [&](const Context& context, const Batch& batch) {
          const auto count = static_cast<int64_t>(batch.pick.size());
          Rows<float> in(x, width, batch.pick, batch.gap);
          std::vector<float> lse(batch.pick.size());
          log_sum_exp(context, in.tensor(), testing::view(lse, {count}));
          Rows<int32_t> ids(count, 3, 1);
          Rows<float> logprobs(count, 3, 2);
          top_logprobs(context, in.tensor(), testing::view(lse, {count}), 3, ids.tensor(),
                       logprobs.tensor());
          std::vector<SampleParams> params;
          for (const int64_t r : batch.pick) {
            params.push_back(kSampleSettings[static_cast<size_t>(r) % std::size(kSampleSettings)]);
            params.back().seed = static_cast<uint64_t>(r);
          }
          std::vector<Sampled> sampled(params.size());
          sample(context, in.tensor(), params, sampled);
          std::vector<double> all;
          for (size_t i = 0; i < params.size(); ++i) {
            all.push_back(lse[i]);
            for (size_t j = 0; j < 3; ++j) {
              all.push_back(ids.dense()[i * 3 + j]);
              all.push_back(logprobs.dense()[i * 3 + j]);
            }
            all.push_back(sampled[i].id);
            all.push_back(sampled[i].logprob);
            all.push_back(sampled[i].processed_logprob);
          }
          return all;
        },
        false);  // a GPU's logits are drawn from on the host
  }
}

}  // namespace
}  // namespace perigee::ops
