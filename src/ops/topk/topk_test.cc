#include "ops/topk/topk.h"

#include <limits>

#include "ops/op_test.h"

namespace perigee::ops {
namespace {

using testing::isas;
using testing::random_half;
using testing::reference;

using Rows = std::vector<std::vector<bf16>>;
using Selected = std::vector<std::vector<int32_t>>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<bf16> halves(const std::vector<float>& x) {
  std::vector<bf16> out;
  for (const float v : x) out.push_back(to_bf16(v));
  return out;
}

// Runs one batch of rows of different lengths, with bright garbage behind each row's length.
Selected select(const Context& context, const Rows& rows, int64_t k) {
  size_t width = 1;
  for (const std::vector<bf16>& row : rows) width = std::max(width, row.size());
  const int64_t n = static_cast<int64_t>(rows.size());
  const int64_t stride = static_cast<int64_t>(width) + 3;
  std::vector<bf16> half(rows.size() * static_cast<size_t>(stride), to_bf16(3e38f));
  std::vector<int32_t> lengths;
  for (size_t t = 0; t < rows.size(); ++t) {
    std::copy(rows[t].begin(), rows[t].end(), half.begin() + static_cast<int64_t>(t) * stride);
    lengths.push_back(static_cast<int32_t>(rows[t].size()));
  }
  std::vector<double> wide = testing::widen(half);
  std::vector<int32_t> out(rows.size() * static_cast<size_t>(k), -77);
  std::vector<int32_t> counts(rows.size(), -77);
  const bool is_reference = context.device == tensor::Device::kReference;
  Tensor scores = is_reference ? tensor::view(wide.data(), {n, static_cast<int64_t>(width)})
                               : tensor::view(half.data(), {n, static_cast<int64_t>(width)});
  scores.row_stride = stride;
  topk(context, scores, tensor::view(lengths.data(), {n}), k, tensor::view(out.data(), {n, k}),
       tensor::view(counts.data(), {n}));
  Selected result;
  for (size_t t = 0; t < rows.size(); ++t) {
    const int64_t count = std::min<int64_t>(lengths[t], k);
    EXPECT_EQ(counts[t], count);
    const int32_t* row = out.data() + static_cast<int64_t>(t) * k;
    for (int64_t i = count; i < k; ++i) EXPECT_EQ(row[i], -1);
    result.emplace_back(row, row + count);
  }
  return result;
}

std::vector<int32_t> select_one(const std::vector<bf16>& row, int64_t k) {
  const std::vector<int32_t> cpu = select(testing::cpu(), {row}, k)[0];
  EXPECT_EQ(cpu, select(reference(), {row}, k)[0]);
  for (const Isa isa : isas()) EXPECT_EQ(cpu, select(testing::cpu(isa), {row}, k)[0]) << testing::isa_name(isa);
  return cpu;
}

std::vector<int32_t> first(int64_t n) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < n; ++i) out.push_back(i);
  return out;
}

TEST(Topk, HandNumbers) {
  const std::vector<bf16> row = halves({0.5f, -1.0f, 3.0f, 0.5f, 2.0f, 0.5f});
  EXPECT_EQ(select_one(row, 1), (std::vector<int32_t>{2}));
  EXPECT_EQ(select_one(row, 2), (std::vector<int32_t>{2, 4}));
  EXPECT_EQ(select_one(row, 3), (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(select_one(row, 4), (std::vector<int32_t>{0, 2, 3, 4}));
  EXPECT_EQ(select_one(row, 5), (std::vector<int32_t>{0, 2, 3, 4, 5}));
  EXPECT_EQ(select_one(row, 6), first(6));
}

TEST(Topk, BothZerosAreEqual) {
  EXPECT_EQ(select_one(halves({-0.0f, 0.0f, -0.0f, 0.0f, -1.0f}), 2), first(2));
}

TEST(Topk, NanRanksBelowNegativeInfinity) {
  const std::vector<bf16> row = halves({kNan, -kInf, -kNan, -3e38f, kNan, -kInf});
  EXPECT_EQ(select_one(row, 1), (std::vector<int32_t>{3}));
  EXPECT_EQ(select_one(row, 3), (std::vector<int32_t>{1, 3, 5}));
  EXPECT_EQ(select_one(row, 4), (std::vector<int32_t>{0, 1, 3, 5}));
  EXPECT_EQ(select_one(halves({kNan, kNan, kNan}), 2), first(2));
  EXPECT_EQ(select_one(halves({1.0f, kInf, kInf}), 1), (std::vector<int32_t>{1}));
}

TEST(Topk, ShortRowsSelectEverythingWhateverTheScores) {
  EXPECT_EQ(select_one(halves({kNan, -kInf, kNan}), 3), first(3));
  EXPECT_EQ(select_one(halves({kNan, -kInf, kNan}), 2048), first(3));
  EXPECT_EQ(select_one({}, 4), first(0));
}

// Fewer than k finite values: the rest is filled by valid -inf in ascending position, never by
// padding.
TEST(Topk, FewerThanKFiniteValues) {
  std::vector<bf16> row(5000, to_bf16(-kInf));
  row[4000] = to_bf16(-2.0f);
  row[4999] = to_bf16(1.0f);
  std::vector<int32_t> want = first(2046);
  want.push_back(4000);
  want.push_back(4999);
  EXPECT_EQ(select_one(row, 2048), want);
}

// More equal candidates than any bin of a bounded-buffer algorithm holds: 131,072 equal scores
// around its capacity.
TEST(Topk, ManyEqualScores) {
  for (const int64_t n : {2047, 2048, 2049, 4095, 4096, 4097, 8192, 131071, 131072, 131073}) {
    EXPECT_EQ(select_one(std::vector<bf16>(static_cast<size_t>(n), to_bf16(0.25f)), 2048),
              first(std::min<int64_t>(n, 2048)));
  }
}

// Nearly all candidates in one coarse bin, a few better ones at the far end.
TEST(Topk, NarrowScoreDistribution) {
  std::vector<bf16> row(131072);
  for (size_t i = 0; i < row.size(); ++i)
    row[i] = {static_cast<uint16_t>(0x3f80 + random_bits(1, i) % 3)};
  row[131071] = to_bf16(9.0f);
  const std::vector<int32_t> got = select_one(row, 2048);
  EXPECT_EQ(got.size(), 2048u);
  EXPECT_EQ(got.back(), 131071);
  for (size_t i = 0; i + 1 < got.size(); ++i) {
    ASSERT_LT(got[i], got[i + 1]);
    ASSERT_EQ(row[static_cast<size_t>(got[i])].bits, 0x3f82);
  }
}

TEST(Topk, LowContrastRowAgainstTheReference) {
  std::vector<bf16> row = random_half(5, 16448, 0.01);
  for (bf16& x : row) x = to_bf16(to_float(x) + 1.0f);
  EXPECT_EQ(select_one(row, 2048).size(), 2048u);
}

// Scores quantised to steps tie at the threshold; repeats and thread counts must not change the
// set.
TEST(Topk, TiesAtTheThresholdAreTakenFromTheFront) {
  std::vector<bf16> row = random_half(6, 20000, 1.0);
  for (bf16& x : row) x = to_bf16(std::round(to_float(x) * 4) / 4);
  const std::vector<int32_t> want = select(reference(), {row}, 2048)[0];
  for (int repeat = 0; repeat < 10; ++repeat) {
    for (int threads = 1; threads <= 3; ++threads) {
      ASSERT_EQ(select(testing::cpu(isas().back(), threads), {row}, 2048)[0], want);
    }
  }
}

TEST(Topk, LengthCrossesK) {
  const std::vector<bf16> all = random_half(7, 2200, 1.0);
  for (const int64_t n : {1, 511, 512, 513, 2047, 2048, 2049, 2112, 2200}) {
    const std::vector<bf16> row(all.begin(), all.begin() + n);
    for (const int64_t k : {1, 2, 8, 512, 2048}) {
      const std::vector<int32_t> got = select_one(row, k);
      ASSERT_EQ(static_cast<int64_t>(got.size()), std::min(n, k));
      if (n <= k) {
        ASSERT_EQ(got, first(n));
      }
    }
  }
}

// One request growing over every length where public kernels changed algorithm.
TEST(Topk, ContextSweep) {
  const std::vector<bf16> all = random_half(8, 10000, 2.0);
  Rows rows;
  for (int64_t n = 1000; n <= 10000; n += 250) rows.emplace_back(all.begin(), all.begin() + n);
  EXPECT_EQ(select(testing::cpu(isas().back(), 2), rows, 2048), select(reference(), rows, 2048));
}

TEST(Topk, NeedleIsFoundAtEveryDepth) {
  for (const int64_t n : {2112, 2649, 131072}) {
    for (const int64_t place : {int64_t{0}, n / 3, n - 1}) {
      std::vector<bf16> row = random_half(9, n, 1.0);
      row[static_cast<size_t>(place)] = to_bf16(100.0f);
      EXPECT_EQ(select_one(row, 1), (std::vector<int32_t>{static_cast<int32_t>(place)}));
    }
  }
}

// The smallest k: it must change what is selected as soon as k < length.
TEST(Topk, TinyKIsolatesTheSelector) {
  const std::vector<bf16> row = random_half(10, 9, 1.0);
  EXPECT_EQ(select_one(row, 2).size(), 2u);
  EXPECT_EQ(select_one(row, 8).size(), 8u);
  EXPECT_NE(select_one(row, 8), select_one(halves({9, 8, 7, 6, 5, 4, 3, 2, 1}), 2));
  EXPECT_EQ(select_one(row, 9), first(9));
}

TEST(Topk, RandomBitPatternsAgreeWithTheReference) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const int64_t n = 1 + static_cast<int64_t>(random_bits(seed, 1) % 3000);
    const int64_t k = 1 + static_cast<int64_t>(random_bits(seed, 2) % 700);
    const uint64_t few = seed % 3 == 0 ? 5 : 65536;
    std::vector<bf16> row(static_cast<size_t>(n));
    for (size_t i = 0; i < row.size(); ++i) {
      row[i].bits = static_cast<uint16_t>(mix64(random_bits(seed + 100, i) % few) >> 11);
    }
    ASSERT_EQ(select_one(row, k).size(), static_cast<size_t>(std::min(n, k))) << "seed " << seed;
  }
}

TEST(Topk, ARowDoesNotDependOnItsBatch) {
  Rows rows;
  for (uint64_t i = 0; i < 64; ++i) {
    rows.push_back(random_half(20 + i, static_cast<int64_t>(random_bits(3, i) % 900), 1.0));
  }
  Selected alone;
  for (const std::vector<bf16>& row : rows) alone.push_back(select(testing::cpu(), {row}, 100)[0]);
  for (const size_t batch : {2u, 7u, 64u}) {
    for (int threads = 1; threads <= 3; ++threads) {
      Rows part(rows.end() - static_cast<int64_t>(batch), rows.end());
      const Selected want(alone.end() - static_cast<int64_t>(batch), alone.end());
      ASSERT_EQ(select(testing::cpu(isas().back(), threads), part, 100), want);
    }
  }
  EXPECT_TRUE(select(testing::cpu(), {}, 5).empty());
}

}  // namespace
}  // namespace perigee::ops
