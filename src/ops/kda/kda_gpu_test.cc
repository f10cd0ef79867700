// KDA and its convolution on the GPU: any cut of a sequence into calls gives the same bits, near the reference.
#include <cstring>

#include "ops/conv1d/conv1d.h"
#include "ops/kda/kda_problem.h"

namespace perigee::ops {
namespace {

using testing::TestPart;

constexpr int64_t kRows = 70;

struct Finished {
  std::vector<float> out;
  std::vector<uint8_t> state, open;  // of the sequence, afterwards
};

// The rows of one sequence in calls of these sizes (the last one repeats), as sequence `which` of three; nothing is
// done for the others. With `again`, every call is first made with rows to spare from the next ones and then repeated
// as it should be, as after drafts that were turned down: only for calls that end inside a chunk.
Finished run(const Context& context, KdaProblem& p, const std::vector<int64_t>& sizes, int32_t which, bool again = false) {
  const KdaParams& k = p.params;
  const int64_t keys = k.heads * k.key_dim, width = k.heads * k.value_dim;
  const int64_t state_bytes = k.heads * k.key_dim * k.value_dim * 4, open_bytes = kda_open_bytes(context.device, k);
  std::vector<uint8_t> states(static_cast<size_t>(3 * state_bytes)), opens(static_cast<size_t>(3 * open_bytes), 0xff);
  std::vector<float> out(static_cast<size_t>(p.rows * width), -7.0f);
  testing::BytesOnDevice state(context, states);
  testing::BytesOnDevice open(context, opens);
  for (int64_t done = 0, n = 0; done < p.rows; ++n) {
    const int64_t size = std::min(
        sizes[static_cast<size_t>(std::min<int64_t>(n, static_cast<int64_t>(sizes.size()) - 1))], p.rows - done);
    std::vector<int64_t> calls = {size};
    const int64_t end = done % kKdaChunk + size;  // in the chunk
    if (again && end < kKdaChunk) calls.insert(calls.begin(), size + std::min(kKdaChunk - 1 - end, p.rows - done - size));
    for (const int64_t rows_now : calls) {
      const testing::StepParts parts(context, {{0, rows_now, done, {}, {which}, 2 - which}}, rows_now);
      testing::OnDevice on(context);
      const auto rows = [&](std::vector<bf16>& v, int64_t heads, int64_t dim) {
        return on(tensor::view(v.data() + done * heads * dim, {rows_now, heads, dim}));
      };
      const KdaInputs in = {rows(p.half.q, k.heads, k.key_dim),
                            rows(p.half.k, k.heads, k.key_dim),
                            rows(p.half.v, k.heads, k.value_dim),
                            rows(p.half.z, k.heads, k.key_dim),
                            on(tensor::view(p.half.b.data() + done * k.heads, {rows_now, k.heads})),
                            on(tensor::view(p.a_log.data(), {static_cast<int64_t>(p.a_log.size())})),
                            on(tensor::view(p.dt_bias.data(), {keys}))};
      kda(context, in, k, parts(), {state.data(), state_bytes, 0}, {open.data(), open_bytes},
          on(tensor::view(out.data() + done * width, {rows_now, k.heads, k.value_dim})));
    }
    done += size;
  }
  Finished result;
  result.out = out;
  state.fetch();
  open.fetch();
  result.state.assign(states.begin() + which * state_bytes, states.begin() + (which + 1) * state_bytes);
  result.open.assign(opens.begin() + (2 - which) * open_bytes, opens.begin() + (3 - which) * open_bytes);
  return result;
}

TEST(KdaGpu, EveryCutHasTheSameBitsNearTheReference) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  for (const KdaDecay decay : {KdaDecay::kFull, KdaDecay::kNone, KdaDecay::kAlternating, KdaDecay::kUnbounded}) {
    for (const KdaCase& shape : {KdaCase{2, 128, 128}, KdaCase{3, 32, 32}, KdaCase{1, 16, 48}, KdaCase{2, 80, 64}}) {
      KdaProblem p = make_kda_problem(shape, decay, kRows, 31);
      const Finished all = run(*gpu, p, {kRows}, 0);
      const std::vector<float>& whole = all.out;
      for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {7}, {16}, {3, 30, 1}, {20, 8}}) {
        for (const bool again : {false, true}) {
          const Finished got = run(*gpu, p, sizes, 1, again);
          ASSERT_TRUE(testing::same_bits(got.out, whole)) << "keys " << shape.key_dim << ", first call " << sizes[0];
          ASSERT_EQ(got.state, all.state) << "keys " << shape.key_dim << ", first call " << sizes[0];
          // Rows of the open chunk before its end; what lies behind them is left over and never read.
          ASSERT_EQ(
              std::memcmp(got.open.data(), all.open.data(), static_cast<size_t>(kRows % kKdaChunk * shape.key_dim * 2)),
              0);
        }
      }
      const int64_t keys = p.params.heads * p.params.key_dim * p.params.value_dim;
      std::vector<double> state(static_cast<size_t>(keys)), want(whole.size());
      std::vector<std::byte> open(static_cast<size_t>(kda_open_bytes(tensor::Device::kReference, p.params)));
      const KdaSequence sequence = {0, kRows, 0, state.data(), open.data()};
      const auto view = [&](std::vector<double>& v, int64_t dim) {
        return tensor::view(v.data(), {kRows, p.params.heads, dim});
      };
      kda(testing::reference(), view(p.wide.q, p.params.key_dim), view(p.wide.k, p.params.key_dim),
          view(p.wide.v, p.params.value_dim), view(p.wide.z, p.params.key_dim),
          tensor::view(p.wide.b.data(), {kRows, p.params.heads}),
          tensor::view(p.a_log.data(), {static_cast<int64_t>(p.a_log.size())}),
          tensor::view(p.dt_bias.data(), {static_cast<int64_t>(p.dt_bias.size())}), p.params, {&sequence, 1},
          view(want, p.params.value_dim));
      // Operands rounded to FP16, the state to FP16 when it is read: a few times 2^-11 (docs/kernels/arithmetic.md,
      // "Accuracy").
      const double error = testing::relative_norm(testing::widen(whole), want);
      std::cout << "keys " << shape.key_dim << ", decay " << static_cast<int>(decay) << ": relative error " << error
                << std::endl;
      EXPECT_LE(error, 4 * 0x1p-11);
    }
  }
}

TEST(ConvGpu, EveryCutHasTheSameBitsNearTheReference) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  const int64_t channels = 150;
  for (const int64_t width : {4, 1, 16}) {
    const std::vector<bf16> x = testing::random_half(1, kRows * channels, 1.0);
    const std::vector<float> weight = testing::random_float(2, channels * width, 0.5);
    const auto run_conv = [&](const std::vector<int64_t>& sizes) {
      const int64_t window_bytes = std::max<int64_t>(width - 1, 1) * channels * 2,
                    open_bytes = kConvChunk * channels * 2;
      std::vector<uint8_t> windows(static_cast<size_t>(2 * window_bytes)),
          opens(static_cast<size_t>(2 * open_bytes), 0xff);
      testing::BytesOnDevice window(*gpu, windows);
      testing::BytesOnDevice open(*gpu, opens);
      std::vector<bf16> out(x.size());
      for (int64_t done = 0, n = 0; done < kRows; ++n) {
        const int64_t size = std::min(
            sizes[static_cast<size_t>(std::min<int64_t>(n, static_cast<int64_t>(sizes.size()) - 1))], kRows - done);
        const testing::StepParts parts(*gpu, {{0, size, done, {}, {1}, 1}}, size);
        testing::OnDevice on(*gpu);
        causal_conv1d(*gpu, on(tensor::view(const_cast<bf16*>(x.data()) + done * channels, {size, channels})),
                      on(testing::view(weight, {channels, width})), parts(), {window.data(), window_bytes, 0},
                      {open.data(), open_bytes}, on(tensor::view(out.data() + done * channels, {size, channels})));
        done += size;
      }
      return out;
    };
    const std::vector<bf16> whole = run_conv({kRows});
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {5}, {16}, {3, 40, 2}}) {
      ASSERT_TRUE(testing::same_bits(run_conv(sizes), whole)) << "width " << width << ", first call " << sizes[0];
    }
    std::vector<double> wide = testing::widen(x), want(x.size());
    std::vector<double> window(static_cast<size_t>(16 * channels)), open(static_cast<size_t>(16 * channels));
    const ConvSequence sequence = {0, kRows, 0, window.data(), open.data()};
    causal_conv1d(testing::reference(), tensor::view(wide.data(), {kRows, channels}),
                  testing::view(weight, {channels, width}), {&sequence, 1},
                  tensor::view(want.data(), {kRows, channels}));
    testing::expect_within<bf16>(whole, want, [&](size_t i) {
      const auto t = static_cast<int64_t>(i) / channels, c = static_cast<int64_t>(i) % channels;
      double magnitude = 0;
      for (int64_t j = 0; j < width; ++j) {
        const int64_t from = t - (width - 1) + j;
        if (from >= 0)
          magnitude +=
              std::abs(weight[static_cast<size_t>(c * width + j)] * wide[static_cast<size_t>(from * channels + c)]);
      }
      return 1.1 * static_cast<double>(width + 8) * testing::kRound32 * magnitude +
             std::abs(want[i]) * testing::kRound16 * 1.01;
    });
  }
}

}  // namespace
}  // namespace perigee::ops
