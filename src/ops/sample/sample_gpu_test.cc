// Draws and log-probabilities on the GPU against the host's, bit by bit.
#include "ops/sample/sample_gpu.h"

#include "ops/op_test.h"
#include "ops/sample/sample_cases.h"

namespace perigee::ops {
namespace {

// Logits of `rows` rows: bell-shaped, some impossible, some special, the last row without any that is possible.
std::vector<float> wild_logits(int64_t rows, int64_t width) {
  std::vector<float> x = testing::random_float(static_cast<uint64_t>(width), rows * width, 4.0);
  for (size_t i = 0; i < x.size(); ++i) {
    const uint64_t r = random_bits(3, i);
    const auto row = static_cast<int64_t>(i) / width;
    if (row % 3 == 1 && r % 5 == 0) x[i] = std::round(x[i]);  // ties
    if (row % 3 == 2 && r % 7 == 0) x[i] = -INFINITY;
    if (row == 2 && r % 11 == 0) x[i] = NAN;
    if (row == 3 && r % 13 == 0) x[i] = 1e-40f;  // flushed
    if (row == 4 && r % 997 == 0) x[i] = INFINITY;
    if (row == rows - 1) x[i] = r % 2 == 0 ? NAN : -INFINITY;
  }
  return x;
}

TEST(SampleGpu, HasTheBitsOfTheHost) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  const int64_t rows = 13;
  for (const int64_t width : {int64_t{1}, int64_t{3}, int64_t{1024}, int64_t{1030}, int64_t{33000}, int64_t{163840}}) {
    std::vector<float> x = wild_logits(rows, width);
    std::vector<SampleParams> params(static_cast<size_t>(rows));
    std::vector<DrawKey> keys;
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < rows; ++t) {
      SampleParams& p = params[static_cast<size_t>(t)];
      p.temperature = std::array{1.0, 0.0, 0.3, 1e-30, 40.0}[static_cast<size_t>(t) % 5];
      p.seed = static_cast<uint64_t>(t / 2);
      p.position = 100 + t;
      p.choice = t % 2;
      ASSERT_TRUE(drawn_whole(p, width));
      keys.push_back(draw_key(p));
      ids.push_back(t == 5 ? -1 : static_cast<int32_t>(random_bits(8, static_cast<uint64_t>(t)) % static_cast<uint64_t>(width)));
    }
    std::vector<float> lse(static_cast<size_t>(rows)), got_lse(lse.size()), got_logprob(lse.size());
    log_sum_exp(testing::cpu(), testing::view(x, {rows, width}), testing::view(lse, {rows}));
    std::vector<Sampled> want(static_cast<size_t>(rows));
    sample(testing::cpu(), testing::view(x, {rows, width}), params, want);

    std::vector<Drawn> drawn(static_cast<size_t>(rows));
    const auto bytes = [](auto& v) {
      return tensor::view(reinterpret_cast<uint8_t*>(v.data()), {static_cast<int64_t>(v.size() * sizeof(v[0]))});
    };
    if constexpr (kCudaBuilt) {
      std::vector<uint8_t> workspace(static_cast<size_t>(cuda::sample_workspace_bytes(rows, width)));
      testing::OnDevice on(*gpu);
      const Tensor logits = on(testing::view(x, {rows, width}));
      const Tensor sums = on(testing::view(got_lse, {rows}));
      void* const scratch = on(bytes(workspace)).data;
      cuda::log_sum_exp(*gpu, logits, scratch, sums);
      cuda::draw(*gpu, logits, sums, static_cast<const DrawKey*>(on(bytes(keys)).data), scratch,
                 static_cast<Drawn*>(on(bytes(drawn)).data));
      cuda::token_logprobs(*gpu, logits, sums, on(testing::view(ids, {rows})), on(testing::view(got_logprob, {rows})));
    }
    EXPECT_TRUE(testing::same_bits(lse, got_lse)) << width;
    for (int64_t t = 0; t < rows; ++t) {
      const auto i = static_cast<size_t>(t);
      EXPECT_EQ(drawn[i].id, want[i].id) << "width " << width << ", row " << t;
      EXPECT_EQ(static_cast<double>(drawn[i].logprob), want[i].logprob) << "width " << width << ", row " << t;
      EXPECT_EQ(static_cast<double>(drawn[i].processed_logprob), want[i].processed_logprob) << width << ", row " << t;
      const float x_t = ids[i] < 0 ? lse[i] : x[i * static_cast<size_t>(width) + static_cast<size_t>(ids[i])];
      if (x_t == x_t && lse[i] > -INFINITY) {
        EXPECT_EQ(got_logprob[i], x_t - lse[i]) << width << ", row " << t;
      }
    }
  }
}

}  // namespace
}  // namespace perigee::ops
