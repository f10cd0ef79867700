#include "ops/conv1d/conv1d.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "ops/conv1d/conv1d_cases.h"
#include "ops/op_test.h"

namespace perigee::ops {
namespace {

using testing::kRound16;
using testing::kRound32;
using testing::Rows;
using testing::widen;

struct Outcome {
  std::vector<bf16> out;
  std::vector<bf16> window;
  std::vector<bf16> open;  // the rows of the chunk that is open at the end
};

bool operator==(const Outcome& a, const Outcome& b) {
  return testing::same_bits(a.out, b.out) && testing::same_bits(a.window, b.window) && testing::same_bits(a.open, b.open);
}

// Runs one sequence from its start in calls of the given numbers of rows, from the given window.
Outcome run_cut(const Context& context, const std::vector<bf16>& x,
                const std::vector<float>& weight, int64_t channels, int64_t width,
                std::vector<bf16> window, const std::vector<int64_t>& calls) {
  Outcome result;
  int64_t row = 0;
  std::vector<bf16> open(static_cast<size_t>(kConvChunk * channels));
  for (const int64_t rows : calls) {
    std::vector<int64_t> pick = testing::iota(rows);
    for (int64_t& p : pick) p += row;
    Rows<bf16> in(x, channels, pick, 3);
    Rows<bf16> out(rows, channels, 1);
    const ConvSequence s = {0, rows, row, window.data(), open.data()};
    causal_conv1d(context, in.tensor(), testing::view(weight, {channels, width}), {&s, 1},
                  out.tensor());
    const std::vector<bf16> dense = out.dense();
    result.out.insert(result.out.end(), dense.begin(), dense.end());
    row += rows;
  }
  result.window = window;
  open.resize(width == 1 ? 0 : static_cast<size_t>(row % kConvChunk * channels));
  result.open = open;
  return result;
}

TEST(Conv1dReference, HandNumbers) {
  const std::vector<double> x = {1, 10, 2, 20};  // two rows of two channels
  const std::vector<float> weight = {1, 2, 3, 0, 0, 1};
  std::vector<double> window = {0, 0, 0, 0};
  std::vector<double> out(4);
  std::vector<double> open(32);  // rows 12 and 13 of the open chunk are the last two inputs
  open[24] = 5;
  open[25] = 50;
  open[26] = 7;
  open[27] = 70;
  const ConvSequence s = {0, 2, 14, window.data(), open.data()};
  causal_conv1d(testing::reference(), testing::view(x, {2, 2}), testing::view(weight, {2, 3}),
                {&s, 1}, testing::view(out, {2, 2}));
  const auto silu = [](double y) { return y / (1 + std::exp(-y)); };
  EXPECT_DOUBLE_EQ(out[0], silu(5 + 2 * 7 + 3 * 1));
  EXPECT_DOUBLE_EQ(out[1], silu(10));
  EXPECT_DOUBLE_EQ(out[2], silu(7 + 2 * 1 + 3 * 2));
  EXPECT_DOUBLE_EQ(out[3], silu(20));
  EXPECT_EQ(window, x);
}

TEST(Conv1d, IsWithinItsBoundOnEveryInstructionSet) {
  for (const ConvCase& c : kConvCases) {
    const std::vector<bf16> x = testing::random_half(1, c.rows * c.channels, 2.0);
    const std::vector<float> weight = testing::random_float(2, c.channels * c.width, 0.5);
    const std::vector<bf16> window = testing::random_half(3, (c.width - 1) * c.channels, 2.0);
    std::vector<double> wide = widen(x);
    std::vector<double> wide_window = widen(window);
    wide_window.push_back(0);  // an address even when the window is empty
    std::vector<double> want(wide.size());
    std::vector<double> magnitude(wide.size());
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = 0; i < c.channels; ++i) {
        for (int64_t j = 0; j < c.width; ++j) {
          const int64_t s = r - (c.width - 1) + j;
          const double v =
              s < 0 ? wide_window[static_cast<size_t>((c.width - 1 + s) * c.channels + i)]
                    : wide[static_cast<size_t>(s * c.channels + i)];
          magnitude[static_cast<size_t>(r * c.channels + i)] +=
              std::abs(v * weight[static_cast<size_t>(i * c.width + j)]);
        }
      }
    }
    std::vector<double> wide_open(static_cast<size_t>(kConvChunk * c.channels));
    const ConvSequence s = {0, c.rows, 0, wide_window.data(), wide_open.data()};
    causal_conv1d(testing::reference(), testing::view(wide, {c.rows, c.channels}),
                  testing::view(weight, {c.channels, c.width}), {&s, 1},
                  testing::view(want, {c.rows, c.channels}));
    wide_window.pop_back();
    std::vector<Outcome> outcomes;
    for (const Isa isa : testing::isas()) {
      outcomes.push_back(
          run_cut(testing::cpu(isa, 2), x, weight, c.channels, c.width, window, {c.rows}));
      testing::expect_within<bf16>(outcomes.back().out, want, [&](size_t i) {
        return 1.1 * static_cast<double>(c.width) * kRound32 * magnitude[i] +
               std::abs(want[i]) * (8 * kRound32 + kRound16);
      });
      EXPECT_EQ(widen(outcomes.back().window), wide_window);
      wide_open.resize(c.width == 1 ? 0 : static_cast<size_t>(c.rows % kConvChunk * c.channels));
      EXPECT_EQ(widen(outcomes.back().open), wide_open);
      EXPECT_TRUE(outcomes.back() == outcomes.front()) << testing::isa_name(isa);
    }
  }
}

TEST(Conv1d, EveryCutGivesTheSameBits) {
  const int64_t rows = 53;
  const int64_t channels = 150;
  const bool holds = rc::check("any cut, any instruction set, any threads", [&] {
    const int64_t width = *rc::gen::inRange<int64_t>(1, 7);
    const std::vector<bf16> x = testing::random_half(5, rows * channels, 2.0);
    const std::vector<float> weight = testing::random_float(6, channels * width, 0.5);
    const std::vector<bf16> window((width - 1) * channels + 1);
    const Outcome whole =
        run_cut(testing::cpu(Isa::kGeneric), x, weight, channels, width, window, {rows});
    const uint64_t seed = *rc::gen::arbitrary<uint64_t>();
    std::vector<int64_t> calls = {0};
    for (int64_t left = rows; left > 0; left -= calls.back()) {
      calls.push_back(
          std::min(left, static_cast<int64_t>(1 + random_bits(seed, calls.size()) % 7)));
    }
    const int threads = *rc::gen::inRange(1, 4);
    for (const Isa isa : testing::isas()) {
      RC_ASSERT(run_cut(testing::cpu(isa, threads), x, weight, channels, width, window, calls) ==
                whole);
    }
  });
  EXPECT_TRUE(holds);
}

TEST(Conv1d, CallingAgainFromAnEarlierPositionOfTheChunkForgetsTheRowsAfterIt) {
  const int64_t channels = 40;
  const std::vector<bf16> x = testing::random_half(21, 30 * channels, 2.0);
  const std::vector<float> weight = testing::random_float(22, channels * 4, 0.5);
  const std::vector<bf16> window(3 * channels);
  const Outcome whole = run_cut(testing::cpu(), x, weight, channels, 4, window, {30});
  std::vector<bf16> w = window;
  std::vector<bf16> open(kConvChunk * channels);
  const auto call = [&](int64_t from, int64_t rows, int64_t position) {
    std::vector<int64_t> pick = testing::iota(rows);
    for (int64_t& p : pick) p += from;
    Rows<bf16> in(x, channels, pick, 0);
    Rows<bf16> out(rows, channels, 0);
    const ConvSequence s = {0, rows, position, w.data(), open.data()};
    causal_conv1d(testing::cpu(), in.tensor(), testing::view(weight, {channels, 4}), {&s, 1}, out.tensor());
    return out.dense();
  };
  call(0, 19, 0);
  call(3, 5, 19);  // five rows that are taken back
  const std::vector<bf16> out = call(19, 11, 19);
  EXPECT_TRUE(testing::same_bits(out, std::vector<bf16>(whole.out.begin() + 19 * channels, whole.out.end())));
  EXPECT_TRUE(testing::same_bits(w, whole.window));
}

TEST(Conv1d, SequencesAreIndependent) {
  const int64_t channels = 70;
  const int64_t width = 4;
  const std::vector<bf16> x = testing::random_half(7, 40 * channels, 2.0);
  const std::vector<float> weight = testing::random_float(8, channels * width, 0.5);
  const std::vector<int64_t> lengths = {1, 12, 0, 3, 17, 1, 2};
  for (int threads = 1; threads <= 3; ++threads) {
    std::vector<std::vector<bf16>> windows;
    std::vector<std::vector<bf16>> opens(lengths.size(), std::vector<bf16>(kConvChunk * channels));
    std::vector<ConvSequence> sequences;
    int64_t row = 2;  // rows 0 and 1 belong to nobody
    for (const int64_t n : lengths) {
      windows.push_back(testing::random_half(row, (width - 1) * channels, 1.0));
      sequences.push_back({row, n, 0, nullptr, nullptr});
      row += n;
    }
    for (size_t i = 0; i < windows.size(); ++i) {
      sequences[i].window = windows[i].data();
      sequences[i].open = opens[i].data();
    }
    const std::vector<std::vector<bf16>> before = windows;
    Rows<bf16> in(x, channels, testing::iota(40), 5);
    Rows<bf16> out(40, channels, 2);
    const std::vector<bf16> untouched = out.dense();
    causal_conv1d(testing::cpu(testing::isas().back(), threads), in.tensor(),
                  testing::view(weight, {channels, width}), sequences, out.tensor());
    std::vector<bf16> want = untouched;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int64_t begin = sequences[i].row_begin;
      const std::vector<bf16> own(x.begin() + begin * channels,
                                  x.begin() + (begin + lengths[i]) * channels);
      const Outcome alone =
          run_cut(testing::cpu(), own, weight, channels, width, before[i], {lengths[i]});
      EXPECT_TRUE(testing::same_bits(alone.window, windows[i]));
      std::copy(alone.out.begin(), alone.out.end(), want.begin() + begin * channels);
    }
    EXPECT_TRUE(testing::same_bits(out.dense(), want));
  }
}

}  // namespace
}  // namespace perigee::ops
