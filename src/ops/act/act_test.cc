#include "ops/act/act.h"

#include <gtest/gtest.h>

#include "ops/act/act_cases.h"
#include "ops/op_test.h"

namespace perigee::ops {
namespace {

using testing::Batch;
using testing::kRound16;
using testing::kRound32;
using testing::Rows;
using testing::widen;

constexpr GluParams kSitu = {GluKind::kSitu, 4.0, 25.0};
constexpr GluParams kSilu = {GluKind::kSilu, 0, 0};

enum class Call { kSituGlu, kSiluGlu, kGate, kAdd };
constexpr Call kCalls[] = {Call::kSituGlu, Call::kSiluGlu, Call::kGate, Call::kAdd};

void apply(const Context& context, Call call, const Tensor& a, const Tensor& b, const Tensor& out) {
  switch (call) {
    case Call::kSituGlu:
      return glu(context, a, b, kSitu, out);
    case Call::kSiluGlu:
      return glu(context, a, b, kSilu, out);
    case Call::kGate:
      return sigmoid_gate(context, a, b, out);
    case Call::kAdd:
      return add(context, a, b, out);
  }
}

TEST(ActReference, HandNumbers) {
  std::vector<double> a = {1, 0, -100};
  std::vector<double> b = {2, 5, 1000};
  std::vector<double> out(3);
  const Tensor a_view = testing::view(a, {1, 3});
  const Tensor b_view = testing::view(b, {1, 3});
  const Tensor out_view = testing::view(out, {1, 3});
  const double half = 0.7310585786300049;  // sigmoid(1)
  apply(testing::reference(), Call::kSiluGlu, a_view, b_view, out_view);
  EXPECT_NEAR(out[0], half * 2, 1e-15);
  EXPECT_EQ(out[1], 0);
  apply(testing::reference(), Call::kSituGlu, a_view, b_view, out_view);
  EXPECT_NEAR(out[0], 4 * 0.24491866240370913 * half * 25 * 0.07982976911113136,
              1e-13);  // tanh(1/4), tanh(2/25)
  EXPECT_NEAR(out[2], -100 * std::exp(-100.0), 1e-55);
  apply(testing::reference(), Call::kGate, b_view, a_view, out_view);
  EXPECT_NEAR(out[0], 2 * half, 1e-15);
  EXPECT_EQ(out[1], 2.5);
  apply(testing::reference(), Call::kAdd, a_view, b_view, out_view);
  EXPECT_EQ(out[2], 900);
}

void compare(Call call, const std::vector<bf16>& a, const std::vector<bf16>& b, int64_t rows,
             int64_t width) {
  std::vector<double> a_wide = widen(a);
  std::vector<double> b_wide = widen(b);
  std::vector<double> want(a.size());
  apply(testing::reference(), call, testing::view(a_wide, {rows, width}),
        testing::view(b_wide, {rows, width}), testing::view(want, {rows, width}));
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::abs(want[i]) > 0x1.ffp127)
      want[i] = std::copysign(INFINITY, want[i]);  // rounds to it in BF16
    // A flushed sigmoid is an exact zero, also against an infinite operand.
    const double gate = call == Call::kGate ? b_wide[i] : a_wide[i];
    const double other = call == Call::kGate ? a_wide[i] : b_wide[i];
    const bool product = call == Call::kGate || call == Call::kSiluGlu;
    if (product && gate < std::log(0x1p-126) && std::isinf(other)) want[i] = NAN;
  }
  for (const Isa isa : testing::isas()) {
    Rows<bf16> in_a(a, width, testing::iota(rows), 3);
    Rows<bf16> in_b(b, width, testing::iota(rows), 1);
    Rows<bf16> out(rows, width, 2);
    apply(testing::cpu(isa), call, in_a.tensor(), in_b.tensor(), out.tensor());
    testing::expect_within<bf16>(out.dense(), want, [&](size_t i) {
      // A sigmoid below the normal range is flushed: its factor may be as large as the bounds or
      // the operands.
      const double flushed =
          0x1p-126 * std::max(100.0, std::max(1.0, std::abs(a_wide[i])) * std::abs(b_wide[i]));
      return std::abs(want[i]) * (24 * kRound32 + kRound16) + flushed;
    });
    apply(testing::cpu(isa), call, in_a.tensor(), in_b.tensor(), in_a.tensor());
    EXPECT_TRUE(testing::same_bits(in_a.dense(), out.dense())) << "in place";
    Rows<bf16> again(a, width, testing::iota(rows), 3);
    apply(testing::cpu(isa), call, again.tensor(), in_b.tensor(), in_b.tensor());
    EXPECT_TRUE(testing::same_bits(in_b.dense(), out.dense())) << "in place of the second";
  }
}

TEST(Act, IsWithinItsBound) {
  for (const Call call : kCalls) {
    for (const int64_t width : kActWidths) {
      for (const double scale : {0.1, 3.0, 60.0}) {
        compare(call, testing::random_half(1, 2 * width, scale),
                testing::random_half(2, 2 * width, scale), 2, width);
      }
    }
  }
}

TEST(Act, SaturatesAndKeepsInfinities) {
  std::vector<bf16> a;
  std::vector<bf16> b;
  for (const float x : kActSpecials) {
    for (const float y : kActSpecials) {
      a.push_back(to_bf16(x));
      b.push_back(to_bf16(y));
    }
  }
  a.push_back(to_bf16(NAN));
  b.push_back(to_bf16(1));
  for (const Call call : kCalls) compare(call, a, b, 1, static_cast<int64_t>(a.size()));
}

TEST(Act, SituIsBounded) {
  std::vector<bf16> all;
  for (uint32_t u = 0; u < 0x10000; ++u) {
    const bf16 x = {static_cast<uint16_t>(u)};
    if (to_float(x) == to_float(x)) all.push_back(x);
  }
  const auto n = static_cast<int64_t>(all.size());
  std::vector<bf16> up(all.size());
  std::vector<bf16> out(all.size());
  for (const float u : {-INFINITY, -3.3e38f, -1e3f, 7.0f, 1e3f, 3.3e38f, INFINITY}) {
    std::fill(up.begin(), up.end(), to_bf16(u));
    glu(testing::cpu(), testing::view(all, {1, n}), testing::view(up, {1, n}), kSitu,
        testing::view(out, {1, n}));
    for (const bf16 y : out) ASSERT_LE(std::abs(to_float(y)), 100.0f);
  }
}

// On a GPU gate and up of glu are FP32.
void apply_on(const Context& context, Call call, const Tensor& a, const Tensor& b, const Tensor& out) {
  if (context.device != tensor::Device::kCuda) return apply(context, call, a, b, out);
  std::vector<float> wide[2];
  const Tensor* const in[2] = {&a, &b};
  Tensor given[2] = {a, b};
  for (int i = 0; i < 2 && call != Call::kGate && call != Call::kAdd; ++i) {
    for (int64_t r = 0; r < a.rows(); ++r) {
      for (int64_t c = 0; c < a.dims[1]; ++c) wide[i].push_back(to_float(in[i]->row<bf16>(r)[c]));
    }
    given[i] = tensor::view(wide[i].data(), {a.rows(), a.dims[1]});
  }
  testing::OnDevice on(context);
  apply(context, call, on(given[0]), on(given[1]), on(out));
}

TEST(Act, RowsAreIndependent) {
  for (const int64_t width : {47, 1030}) {
    const int64_t rows = 5;
    const std::vector<bf16> a = testing::random_half(3, rows * width, 4.0);
    const std::vector<bf16> b = testing::random_half(4, rows * width, 4.0);
    for (const Call call : kCalls) {
      testing::expect_rows_independent<bf16>(
          rows, width, [&](const Context& context, const Batch& batch) {
            Rows<bf16> in_a(a, width, batch.pick, batch.gap);
            Rows<bf16> in_b(b, width, batch.pick, 1);
            Rows<bf16> out(static_cast<int64_t>(batch.pick.size()), width, batch.gap);
            apply_on(context, call, in_a.tensor(), in_b.tensor(), out.tensor());
            return out.dense();
          });
    }
  }
}

}  // namespace
}  // namespace perigee::ops
