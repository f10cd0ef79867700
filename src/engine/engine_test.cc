// The engine on seeded random models of every kind: bits do not depend on chunks, batch mates, threads or instructions.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/rng.h"
#include "engine/test_shapes.h"

namespace perigee::engine {
namespace {

class EngineBits : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("perigee_engine_test_" + GetParam().name);
    std::filesystem::create_directories(folder_);
    ASSERT_TRUE(write_file(folder_ / "config.json", GetParam().config).ok());
    if (GetParam().device != tensor::Device::kCuda) return;
    const Result<tensor::GpuInfo> gpu = tensor::open_gpu(0);
    if (!gpu.ok()) GTEST_SKIP() << gpu.error().message;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Engine> open(int64_t batched, int threads = 2, const std::string& isa = "auto") {
    EngineOptions o;
    o.model = folder_;
    o.device = GetParam().device;
    o.batched_tokens = batched;
    o.threads = threads;
    o.isa = isa;
    o.load.source = model::LoadOptions::Source::kDummy;
    o.load.seed = 5;
    Result<std::unique_ptr<Engine>> engine = Engine::open(o);
    if (!engine.ok()) ADD_FAILURE() << engine.error().message;
    return engine.ok() ? std::move(*engine) : nullptr;
  }

  static std::vector<int32_t> ids(size_t n, uint64_t seed, int64_t vocab) {
    std::vector<int32_t> out(n);
    for (size_t i = 0; i < n; ++i) {
      out[i] = static_cast<int32_t>(random_bits(seed, i) % static_cast<uint64_t>(vocab));
    }
    return out;
  }

  static void expect_same(const ScoredSequence& a, const ScoredSequence& b, const std::string& what) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(std::memcmp(&a[i].logsumexp, &b[i].logsumexp, sizeof(double)), 0) << what << ", position " << i;
      ASSERT_EQ(a[i].target_logprob, b[i].target_logprob) << what << ", position " << i;
      ASSERT_EQ(a[i].top, b[i].top) << what << ", position " << i;
      ASSERT_TRUE(std::isfinite(a[i].logsumexp));
    }
  }

  std::filesystem::path folder_;
};

TEST_P(EngineBits, ChunksBatchesThreadsAndInstructions) {
  std::unique_ptr<Engine> whole = open(4096);
  ASSERT_NE(whole, nullptr);
  const int64_t vocab = whole->config().vocab;
  const std::vector<std::vector<int32_t>> lists = {ids(150, 1, vocab), ids(1, 2, vocab), ids(37, 3, vocab),
                                                   ids(64, 4, vocab)};
  std::vector<ScoredSequence> alone;
  for (const std::vector<int32_t>& list : lists) {
    Result<std::vector<ScoredSequence>> scored = whole->score({list}, 4);
    ASSERT_TRUE(scored.ok());
    alone.push_back((*scored)[0]);
  }
  struct Way {
    int64_t batched;
    int threads;
    const char* isa;
  };
  for (const Way& way : {Way{1, 1, "auto"}, Way{7, 3, "auto"}, Way{16, 2, "avx2"}, Way{64, 1, "generic"},
                         Way{1000, 2, "avx512"}}) {
    std::unique_ptr<Engine> engine = open(way.batched, way.threads, way.isa);
    Result<std::vector<ScoredSequence>> together = engine->score(lists, 4);
    ASSERT_TRUE(together.ok());
    for (size_t i = 0; i < lists.size(); ++i) {
      expect_same((*together)[i], alone[i], fmt::format("steps of {} tokens, sequence {}", way.batched, i));
    }
  }
}

TEST_P(EngineBits, GenerationInABatchScoresTheSame) {
  std::unique_ptr<Engine> engine = open(20);
  ASSERT_NE(engine, nullptr);
  const int64_t vocab = engine->config().vocab;
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    GenerateRequest r;
    r.prompt = ids(3 + 17 * i, 20 + i, vocab);
    r.sampling.seed = i;
    r.sampling.temperature = i == 3 ? 0.0 : 1.0;
    r.max_tokens = 40 - static_cast<int64_t>(i);
    requests.push_back(r);
  }
  Result<std::vector<Generated>> made = engine->generate(requests, nullptr);
  ASSERT_TRUE(made.ok());
  for (size_t i = 0; i < requests.size(); ++i) {
    const Generated& g = (*made)[i];
    ASSERT_EQ(static_cast<int64_t>(g.tokens.size()), requests[i].max_tokens);
    // Alone, the request gives the same tokens; scored, the same log-probabilities.
    Result<std::vector<Generated>> alone = engine->generate({requests[i]}, nullptr);
    ASSERT_TRUE(alone.ok());
    std::vector<int32_t> all = requests[i].prompt;
    for (size_t t = 0; t < g.tokens.size(); ++t) {
      EXPECT_EQ((*alone)[0].tokens[t].id, g.tokens[t].id);
      all.push_back(g.tokens[t].id);
    }
    Result<std::vector<ScoredSequence>> scored = open(1000)->score({all}, 0);
    ASSERT_TRUE(scored.ok());
    for (size_t t = 0; t < g.tokens.size(); ++t) {
      EXPECT_EQ((*scored)[0][requests[i].prompt.size() - 1 + t].target_logprob, g.tokens[t].logprob);
    }
  }
}

TEST_P(EngineBits, StopIdsAndCancellationEndARequestOnly) {
  std::unique_ptr<Engine> engine = open(64);
  ASSERT_NE(engine, nullptr);
  GenerateRequest r;
  r.prompt = {1, 2, 3};
  r.max_tokens = 12;
  Result<std::vector<Generated>> free_run = engine->generate({r}, nullptr);
  ASSERT_TRUE(free_run.ok());
  GenerateRequest stopping = r;
  stopping.stop_ids = {(*free_run)[0].tokens[4].id};
  int seen = 0;
  Result<std::vector<Generated>> made = engine->generate(
      {stopping, r}, [&](size_t request, const GeneratedToken&) { return request == 0 || ++seen < 7; });
  ASSERT_TRUE(made.ok());
  EXPECT_EQ((*made)[0].finish, Finish::kStop);
  EXPECT_LE((*made)[0].tokens.size(), 5u);
  EXPECT_EQ((*made)[1].finish, Finish::kCancelled);
  EXPECT_EQ((*made)[1].tokens.size(), 7u);
}

TEST_P(EngineBits, RefusesWhatDoesNotFit) {
  std::unique_ptr<Engine> engine = open(64);
  ASSERT_NE(engine, nullptr);
  EXPECT_FALSE(engine->check_ids({}, 0, "--ids").ok());
  const std::vector<int32_t> beyond = {1, static_cast<int32_t>(engine->config().vocab)};
  EXPECT_NE(engine->check_ids(beyond, 0, "--ids").error().message.find("--ids"), std::string::npos);
  const std::vector<int32_t> fine = {1, 2};
  EXPECT_TRUE(engine->check_ids(fine, 4094, "--ids").ok());
  EXPECT_FALSE(engine->check_ids(fine, 4095, "--ids").ok());
  EXPECT_FALSE(engine->check_ids(fine, INT64_MAX, "--ids").ok());
}

INSTANTIATE_TEST_SUITE_P(Kinds, EngineBits, ::testing::ValuesIn(test_shapes()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace perigee::engine
