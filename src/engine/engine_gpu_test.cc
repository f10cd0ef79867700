// Whole models on the GPU: graphs or single launches, rows one by one or together, pages anywhere: the same bits.
// Distances from the other devices. Digests of everything, so that tuning can prove that it changed nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/file.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "engine/test_shapes.h"

namespace perigee::engine {
namespace {

constexpr int64_t kRoom = 200;  // tokens of a sequence

std::vector<Shape> gpu_shapes() {
  std::vector<Shape> out;
  for (const Shape& s : test_shapes()) {
    if (s.device == tensor::Device::kCuda) out.push_back(s);
  }
  return out;
}

class EngineGpu : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    const Result<tensor::GpuInfo> gpu = tensor::open_gpu(0);
    if (!gpu.ok()) GTEST_SKIP() << gpu.error().message;
    gpu_ = *gpu;
    folder_ = std::filesystem::temp_directory_path() / ("perigee_engine_gpu_test_" + GetParam().name);
    std::filesystem::create_directories(folder_);
    ASSERT_TRUE(write_file(folder_ / "config.json", GetParam().config).ok());
    engine_ = open(tensor::Device::kCuda, LatentFormat::kFp8, KeyFormat::kFp8);
  }
  void TearDown() override {
    engine_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  std::unique_ptr<Engine> open(tensor::Device device, std::optional<LatentFormat> latent,
                               std::optional<KeyFormat> key) {
    EngineOptions o;
    o.model = folder_;
    o.device = device;
    o.latent = latent;
    o.key = key;
    o.threads = 2;
    o.load.source = model::LoadOptions::Source::kDummy;
    o.load.seed = 5;
    Result<std::unique_ptr<Engine>> engine = Engine::open(o);
    if (!engine.ok()) ADD_FAILURE() << engine.error().message;
    return engine.ok() ? std::move(*engine) : nullptr;
  }

  std::vector<int32_t> ids(size_t n, uint64_t seed) const {
    std::vector<int32_t> out(n);
    const auto vocab = static_cast<uint64_t>(engine_->config().vocab);
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(random_bits(seed, i) % vocab);
    return out;
  }

  // The last rows of hidden states when `list` runs in steps of the given sizes; the last size repeats. Blocks are
  // given out in a random order.
  std::vector<bf16> run(const std::vector<int32_t>& list, std::vector<int64_t> sizes, bool graphs, uint64_t order) {
    const int64_t tokens = static_cast<int64_t>(list.size());
    const auto probe = std::move(engine_->make_pool(0, 0)).value();
    const cache::Layout& rows = probe->layout().rows;
    const auto total = static_cast<int64_t>(cache::rows_of_request(rows, kRoom)) + 5;
    const auto pool = std::move(engine_->make_pool(total, 3)).value();
    const auto decoder = std::move(engine_->make_decoder(tokens, kRoom)).value();
    decoder->use_graphs(graphs);
    std::vector<int32_t> table(static_cast<size_t>(total));
    std::iota(table.begin(), table.end(), 0);
    for (size_t i = table.size() - 1; order != 0 && i > 0; --i)
      std::swap(table[i], table[random_bits(order, i) % (i + 1)]);
    const auto groups = static_cast<size_t>(pool->layout().state_groups);
    const std::span<const int32_t> all = table;
    model::Sequence sequence =
        pool->bind(all.subspan(groups, all.size() - groups - 5), all.first(groups), order % 3, 0);
    sequence.reset();
    std::vector<bf16> out;
    const int64_t width = engine_->config().hidden;
    for (size_t n = 0; sequence.length() < tokens; ++n) {
      const int64_t size = std::min(sizes[std::min(n, sizes.size() - 1)], tokens - sequence.length());
      model::Step step;
      step.append(&sequence,
                  std::span(list).subspan(static_cast<size_t>(sequence.length()), static_cast<size_t>(size)));
      const tensor::Tensor hidden = decoder->forward(step);
      const size_t at = out.size();
      out.resize(at + static_cast<size_t>(size * width));
      engine_->context().mover().copy(&out[at], hidden.data, static_cast<size_t>(size * width) * sizeof(bf16));
      engine_->context().mover().wait("a step");
    }
    return out;
  }

  tensor::GpuInfo gpu_;
  std::filesystem::path folder_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(EngineGpu, GraphsChunksVerificationAndPagesKeepTheBits) {
  const std::vector<int32_t> list = ids(150, 3);
  const std::vector<bf16> whole = run(list, {150}, false, 0);
  struct Way {
    const char* name;
    std::vector<int64_t> sizes;
    bool graphs;
    uint64_t order;
  };
  for (const Way& way :
       {Way{"one by one", {1}, false, 0}, Way{"one by one in graphs", {1}, true, 0},
        Way{"other pages", {150}, false, 7}, Way{"decoded in graphs from other pages", {41, 1}, true, 8},
        Way{"eights, as in verification", {30, 8}, true, 9}, Way{"chunks", {5, 16, 3, 64}, true, 10}}) {
    const std::vector<bf16> got = run(list, way.sizes, way.graphs, way.order);
    ASSERT_EQ(got.size(), whole.size());
    int64_t differing = 0;
    for (size_t i = 0; i < got.size(); ++i) differing += got[i].bits != whole[i].bits;
    EXPECT_EQ(differing, 0) << way.name << ": of " << got.size();
  }
}

// Both devices round at the same places, so the GPU may stand no further from the reference than the CPU does, times a
// factor for the luck of a few hundred numbers.
TEST_P(EngineGpu, ErrsNoMoreThanTheCpu) {
  constexpr double kLuck = 2.0;
  const std::vector<std::vector<int32_t>> lists = {ids(150, 3), ids(90, 4)};
  const auto errors = [&](Engine& engine, Engine& reference) {
    const auto got = std::move(engine.score(lists, 0)).value();
    const auto want = std::move(reference.score(lists, 0)).value();
    double square = 0;
    double count = 0;
    for (size_t i = 0; i < lists.size(); ++i) {
      for (size_t p = 0; p + 1 < lists[i].size(); ++p) {
        const double d = *got[i][p].target_logprob - *want[i][p].target_logprob;
        EXPECT_TRUE(std::isfinite(d));
        square += d * d;
        count += 1;
      }
    }
    return std::sqrt(square / count);
  };
  const auto reference = open(tensor::Device::kReference, std::nullopt, std::nullopt);
  const auto cpu = open(tensor::Device::kCpu, LatentFormat::kBf16, KeyFormat::kBf16);
  const auto gpu = open(tensor::Device::kCuda, LatentFormat::kBf16, KeyFormat::kBf16);
  const double cpu_error = errors(*cpu, *reference);
  const double gpu_error = errors(*gpu, *reference);
  std::cout << "log-probabilities against the reference, root mean square: CPU " << cpu_error << ", GPU " << gpu_error
            << std::endl;
  EXPECT_LE(gpu_error, kLuck * cpu_error);
}

// Lines "compute-capability name digest" of tests/golden/gpu/digests.txt.
TEST_P(EngineGpu, HasTheDigestsOfItsFirstVersion) {
  std::string digests;
  struct Formats {
    const char* name;
    LatentFormat latent;
    KeyFormat key;
  };
  for (const Formats& f :
       {Formats{"bf16", LatentFormat::kBf16, KeyFormat::kBf16}, Formats{"fp8", LatentFormat::kFp8, KeyFormat::kFp8},
        Formats{"fp4", LatentFormat::kNvfp4, KeyFormat::kMxfp4}}) {
    const auto engine = open(tensor::Device::kCuda, f.latent, f.key);
    const auto scored = std::move(engine->score({ids(300, 3)}, 0)).value();
    uint64_t hash = 0;
    for (const ScoredPosition& p : scored[0]) {
      uint64_t bits;
      std::memcpy(&bits, &p.logsumexp, sizeof(bits));
      hash = mix64(hash ^ bits);
      const double target = p.target_logprob.value_or(0);
      std::memcpy(&bits, &target, sizeof(bits));
      hash = mix64(hash ^ bits);
    }
    digests += fmt::format("{}.{} {}_{} {:016x}\n", gpu_.major, gpu_.minor, GetParam().name, f.name, hash);
  }
  std::cout << digests;
  Result<std::string> known = read_file("tests/golden/gpu/digests.txt");  // carried to a machine without the sources
  if (!known.ok()) known = read_file(std::string(PERIGEE_SOURCE_DIR) + "/tests/golden/gpu/digests.txt");
  ASSERT_TRUE(known.ok()) << known.error().message;
  if (known->find(fmt::format("{}.{} ", gpu_.major, gpu_.minor)) == std::string::npos) {
    GTEST_SKIP() << "no digests are kept for compute capability " << gpu_.major << "." << gpu_.minor;
  }
  if (known->find(fmt::format(" {}_", GetParam().name)) == std::string::npos) {
    GTEST_SKIP() << "no digests are kept for " << GetParam().name << " yet";
  }
  EXPECT_NE(known->find(digests), std::string::npos) << digests;
}

INSTANTIATE_TEST_SUITE_P(Kinds, EngineGpu, ::testing::ValuesIn(gpu_shapes()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace perigee::engine
