#include "ops/norm/norm.h"

#include <gtest/gtest.h>

#include "ops/norm/norm_cases.h"
#include "ops/op_test.h"

namespace perigee::ops {
namespace {

using testing::Batch;
using testing::OnDevice;
using testing::kRound16;
using testing::kRound32;
using testing::Rows;
using testing::widen;

TEST(NormReference, HandNumbers) {
  std::vector<double> x = {3, 4, 0, 0};
  std::vector<bf16> half = {to_bf16(1), to_bf16(2), to_bf16(1), to_bf16(1)};
  std::vector<float> full = {1, 2, 1, 1};
  std::vector<float> bias = {0, 1, 0, -1};
  std::vector<double> out(4);
  const Tensor x_view = testing::view(x, {1, 4});
  const Tensor out_view = testing::view(out, {1, 4});
  const double rms = 2.5;  // sqrt((9 + 16) / 4)
  for (const Tensor& w : {testing::view(half, {4}), testing::view(full, {4})}) {
    rms_norm(testing::reference(), x_view, w, 0, out_view);
    EXPECT_DOUBLE_EQ(out[0], 3 / rms);
    EXPECT_DOUBLE_EQ(out[1], 8 / rms);
    EXPECT_DOUBLE_EQ(out[2], 0);
  }
  rms_norm(testing::reference(), x_view, testing::view(full, {4}), 2.75, out_view);
  EXPECT_DOUBLE_EQ(out[0], 1);  // 3 / sqrt(6.25 + 2.75)

  layer_norm(testing::reference(), x_view, testing::view(full, {4}), testing::view(bias, {4}), 0,
             out_view);
  const double deviation = std::sqrt((1.25 * 1.25 + 2.25 * 2.25 + 2 * 1.75 * 1.75) / 4);
  EXPECT_DOUBLE_EQ(out[0], 1.25 / deviation);
  EXPECT_DOUBLE_EQ(out[1], 2.25 / deviation * 2 + 1);
  EXPECT_DOUBLE_EQ(out[3], -1.75 / deviation - 1);

  std::vector<double> gate = {0, 100, 0, 0};
  gated_rms_norm(testing::reference(), testing::view(x, {1, 2, 2}), testing::view(full, {2}),
                 testing::view(gate, {1, 4}), 0, out_view);
  EXPECT_DOUBLE_EQ(out[0], 3 / std::sqrt(12.5) / 2);
  EXPECT_DOUBLE_EQ(out[1], 8 / std::sqrt(12.5));
  EXPECT_TRUE(std::isnan(out[2]));  // a head of zeros without eps: 0 / 0
}

void rms_on(const Context& c, const Tensor& x, const Tensor& weight, double eps, const Tensor& out) {
  OnDevice at(c);
  rms_norm(c, at(x), at(weight), eps, at(out));
}
void layer_on(const Context& c, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& out) {
  OnDevice at(c);
  layer_norm(c, at(x), at(weight), at(bias), eps, at(out));
}
void gated_on(const Context& c, const Tensor& x, const Tensor& weight, const Tensor& gate, double eps, const Tensor& out) {
  OnDevice at(c);
  gated_rms_norm(c, at(x), at(weight), at(gate), eps, at(out));
}

// FP32 roundings of the mean of n squares, the root and the products.
double roundings(int64_t n) {
  return static_cast<double>(n) / 32 + 8;
}

TEST(Norm, RmsNormIsWithinItsBound) {
  for (const int64_t n : kNormWidths) {
    const std::vector<bf16> x = testing::random_half(static_cast<uint64_t>(n), 3 * n, 2.0);
    const std::vector<bf16> half = testing::random_half(7, n, 1.0);
    const std::vector<float> full = testing::random_float(8, n, 1.0);
    std::vector<double> wide = widen(x);
    std::vector<double> want(wide.size());
    for (const Tensor& w : {testing::view(half, {n}), testing::view(full, {n})}) {
      rms_norm(testing::reference(), testing::view(wide, {3, n}), w, 1e-5,
               testing::view(want, {3, n}));
      for (const Context& device : testing::devices()) {
        Rows<bf16> in(x, n, testing::iota(3), 5);
        Rows<bf16> out(3, n, 1);
        rms_on(device, in.tensor(), w, 1e-5, out.tensor());
        testing::expect_within<bf16>(out.dense(), want, [&](size_t i) {
          return std::abs(want[i]) * (roundings(n) * kRound32 + kRound16);
        });
        rms_on(device, in.tensor(), w, 1e-5, in.tensor());
        EXPECT_TRUE(testing::same_bits(in.dense(), out.dense())) << "in place";
      }
    }
  }
}

TEST(Norm, LayerNormIsWithinItsBound) {
  for (const int64_t n : kNormWidths) {
    const std::vector<bf16> x = testing::random_half(static_cast<uint64_t>(n) + 1, 3 * n, 2.0);
    const std::vector<float> weight = testing::random_float(8, n, 1.0);
    const std::vector<float> bias = testing::random_float(9, n, 1.0);
    std::vector<double> wide = widen(x);
    std::vector<double> want(wide.size());
    const Tensor w = testing::view(weight, {n});
    const Tensor b = testing::view(bias, {n});
    layer_norm(testing::reference(), testing::view(wide, {3, n}), w, b, 1e-5,
               testing::view(want, {3, n}));
    // The mean's error, n/16 + 5 roundings of mean |x|, moves every deviation; the variance changes
    // by it in second order only, so the rest is relative.
    double mean_error[3];
    for (size_t t = 0; t < 3; ++t) {
      double sum = 0;
      double magnitude = 0;
      double square = 0;
      for (int64_t c = 0; c < n; ++c) {
        const double v = wide[t * static_cast<size_t>(n) + static_cast<size_t>(c)];
        sum += v / static_cast<double>(n);
        square += v * v / static_cast<double>(n);
        magnitude += std::abs(v) / static_cast<double>(n);
      }
      const double deviation = std::sqrt(std::max(0.0, square - sum * sum) + 1e-5);
      mean_error[t] = (static_cast<double>(n) / 16 + 6) * kRound32 * magnitude / deviation;
    }
    for (const Context& device : testing::devices()) {
      Rows<bf16> in(x, n, testing::iota(3), 2);
      Rows<bf16> out(3, n, 3);
      layer_on(device, in.tensor(), w, b, 1e-5, out.tensor());
      testing::expect_within<bf16>(out.dense(), want, [&](size_t i) {
        const size_t column = i % static_cast<size_t>(n);
        const double product = std::abs(want[i]) + std::abs(bias[column]);
        return 2 * mean_error[i / static_cast<size_t>(n)] * std::abs(weight[column]) +
               product * (roundings(n) + 2) * kRound32 + std::abs(want[i]) * kRound16;
      });
    }
  }
}

TEST(Norm, GatedRmsNormIsWithinItsBound) {
  for (const int64_t v : {1, 16, 33, 128}) {
    const int64_t heads = 3;
    const std::vector<float> x = testing::random_float(21, 2 * heads * v, 0.3);
    const std::vector<bf16> gate = testing::random_half(22, 2 * heads * v, 8.0);
    const std::vector<float> weight = testing::random_float(23, v, 1.0);
    std::vector<double> x_wide = widen(x);
    std::vector<double> gate_wide = widen(gate);
    std::vector<double> want(x.size());
    const Tensor w = testing::view(weight, {v});
    gated_rms_norm(testing::reference(), testing::view(x_wide, {2, heads, v}), w,
                   testing::view(gate_wide, {2, heads * v}), 1e-5,
                   testing::view(want, {2, heads * v}));
    for (const Context& device : testing::devices()) {
      Rows<float> in(x, heads * v, testing::iota(2), 4);
      Rows<bf16> gates(gate, heads * v, testing::iota(2), 1);
      Rows<bf16> out(2, heads * v, 2);
      gated_on(device, in.tensor().reshape({2, heads, v}), w, gates.tensor(), 1e-5, out.tensor());
      testing::expect_within<bf16>(out.dense(), want, [&](size_t i) {
        return std::abs(want[i]) * ((roundings(v) + 8) * kRound32 + kRound16);
      });
    }
  }
}

TEST(Norm, InfinityAndNanStayInTheirRow) {
  const std::vector<bf16> x = {to_bf16(INFINITY), to_bf16(1), to_bf16(NAN),
                               to_bf16(1),        to_bf16(1), to_bf16(1)};
  const std::vector<float> weight = {1, 1};
  std::vector<double> wide = widen(x);
  std::vector<double> want(6);
  rms_norm(testing::reference(), testing::view(wide, {3, 2}), testing::view(weight, {2}), 0,
           testing::view(want, {3, 2}));
  for (const Context& device : testing::devices()) {
    Rows<bf16> in(x, 2, testing::iota(3));
    rms_on(device, in.tensor(), testing::view(weight, {2}), 0, in.tensor());
    testing::expect_within<bf16>(in.dense(), want, [](size_t) { return 0.0; });
    EXPECT_EQ(in.dense()[5].bits, to_bf16(1).bits);
  }
}

TEST(Norm, RowsAreIndependent) {
  for (const int64_t n : {1, 100, 515}) {
    const int64_t rows = 9;
    const std::vector<bf16> x = testing::random_half(31, rows * n, 2.0);
    const std::vector<float> x_real = testing::random_float(34, rows * n, 2.0);
    const std::vector<float> weight = testing::random_float(32, n, 1.0);
    const std::vector<float> bias = testing::random_float(33, n, 1.0);
    const Tensor w = testing::view(weight, {n});
    const Tensor b = testing::view(bias, {n});
    const auto run = [&](const Context& context, const Batch& batch) {
      const auto count = static_cast<int64_t>(batch.pick.size());
      Rows<bf16> in(x, n, batch.pick, batch.gap);
      Rows<float> real(x_real, n, batch.pick, batch.gap);
      std::vector<std::vector<bf16>> parts;
      for (int kind = 0; kind < 3; ++kind) {
        Rows<bf16> out(count, n, batch.gap + 1);
        if (kind == 0) rms_on(context, in.tensor(), w, 1e-6, out.tensor());
        if (kind == 1) layer_on(context, in.tensor(), w, b, 1e-6, out.tensor());
        if (kind == 2) {
          gated_on(context, real.tensor().reshape({count, 1, n}), w, in.tensor(), 1e-6, out.tensor());
        }
        parts.push_back(out.dense());
      }
      std::vector<bf16> all;
      for (int64_t r = 0; r < count; ++r) {
        for (const auto& p : parts)
          all.insert(all.end(), p.begin() + r * n, p.begin() + (r + 1) * n);
      }
      return all;
    };
    testing::expect_rows_independent<bf16>(rows, 3 * n, run);
  }
}

// Heads are summed by a warp, rows by a block: one order.
TEST(Norm, AWarpAndABlockOfTheGpuSumAlike) {
  if (testing::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  for (const int64_t n : {1, 5, 128, 129, 515, 7168, 7171}) {
    const std::vector<bf16> x = testing::random_half(41, n, 2.0);
    const std::vector<float> full = testing::random_float(42, n, 1.0);
    std::vector<float> wide;
    for (const bf16 v : x) wide.push_back(to_float(v));
    std::vector<bf16> open(static_cast<size_t>(n), to_bf16(200.0f));  // its sigmoid is 1
    std::vector<bf16> by_block(x.size()), by_warp(x.size());
    const Tensor w = testing::view(full, {n});
    rms_on(*testing::gpu(), testing::view(x, {1, n}), w, 1e-6, testing::view(by_block, {1, n}));
    gated_on(*testing::gpu(), testing::view(wide, {1, 1, n}), w, testing::view(open, {1, n}), 1e-6,
             testing::view(by_warp, {1, n}));
    EXPECT_TRUE(testing::same_bits(by_block, by_warp)) << n;
  }
}

TEST(Norm, AbortsOnForeignShapes) {
  std::vector<bf16> x(6);
  std::vector<float> weight(4);
  const Tensor x_view = testing::view(x, {2, 3});
  EXPECT_DEATH(rms_norm(testing::cpu(), x_view, testing::view(weight, {4}), 0, x_view),
               "weight is F32");
}

}  // namespace
}  // namespace perigee::ops
