// Speed of the whole engine against the machine's own measured rates: decode of a model on seeded random weights, memory in
// use, prefill, and how much faster the CPU device is than the double-precision reference.
//
//   perigee_bench_engine [--config FILE.json] [--tokens N] [--reference MODEL] [--threads N]
//
// Method. Decode: one sequence, a 16-token prompt, then N tokens; time per token is the median gap between tokens, bytes per
// token are those of the weights that a token activates plus its cache and state, computed from the weight table. Memory: peak resident
// bytes against weights + cache. Prefill: 512 tokens, best of 3. Reference: 2,000 ids scored on both devices, once each.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/cpu.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "bench/cpu/machine.h"
#include "bench/engine/step_bytes.h"
#include "engine/engine.h"
#include "model/parameters.h"

namespace perigee::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<int32_t> random_ids(int64_t n, int64_t vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(random_bits(1, i) % static_cast<uint64_t>(vocab));
  }
  return ids;
}

// A checkpoint folder that holds only a configuration.
class ConfigFolder {
 public:
  explicit ConfigFolder(const std::string& config)
      : path_(std::filesystem::temp_directory_path() / fmt::format("perigee_bench_{}", ::getpid())) {
    std::filesystem::create_directories(path_);
    std::filesystem::copy_file(config, path_ / "config.json", std::filesystem::copy_options::overwrite_existing);
  }
  ~ConfigFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::unique_ptr<engine::Engine> open(const std::string& model, tensor::Device device, bool dummy, int threads) {
  engine::EngineOptions o;
  o.model = model;
  o.device = device;
  o.threads = threads;
  if (dummy) o.load.source = model::LoadOptions::Source::kDummy;
  Result<std::unique_ptr<engine::Engine>> engine = engine::Engine::open(o);
  if (!engine.ok()) {
    fmt::print(stderr, "{}\n", engine.error().message);
    std::exit(2);
  }
  return std::move(*engine);
}

void bench_decode(const std::string& config, int64_t tokens, int threads) {
  const ConfigFolder folder(config);
  const Clock::time_point start = Clock::now();
  const std::unique_ptr<engine::Engine> engine = open(folder.path(), tensor::Device::kCpu, true, threads);
  const double load_s = seconds_since(start);
  const model::Config& c = engine->config();
  engine::GenerateRequest request;
  request.prompt = random_ids(16, c.vocab);
  request.max_tokens = tokens;
  std::vector<double> gaps;
  Clock::time_point last = Clock::now();
  const auto made = engine->generate({request}, [&](size_t, const engine::GeneratedToken&) {
    gaps.push_back(seconds_since(last));
    last = Clock::now();
    return true;
  });
  CHECK(made.ok());
  gaps.erase(gaps.begin());  // the first is the prompt's
  std::sort(gaps.begin(), gaps.end());
  const double median = gaps[gaps.size() / 2];
  const model::StateLayout layout = model::make_state_layout(c, engine->device(), engine->formats());
  const StepBytes bytes = step_bytes(c, layout, 1, 16);
  const double active = bytes.dense + bytes.experts;
  const double state = static_cast<double>(model::inspect(c).kda_state_bytes);
  const double rate = (active + state) / median;
  const double peak = static_cast<double>(resident_memory_peak());  // before the machine is measured with a large buffer
  const MachineRates& machine = machine_rates(engine->threads());
  fmt::print("decode     {} layers, {:.2f} GB of weights, {:.3f} GB active + {:.3f} GB KDA state a token, {} threads\n", c.layers,
             engine->memory().weight_bytes * 1e-9, active * 1e-9, state * 1e-9, engine->threads());
  fmt::print("           median {:.2f} ms a token over {} tokens ({:.1f} tokens/s), {:.2f} GB/s = {:.0f} % of {:.2f} GB/s read\n",
             median * 1e3, gaps.size(), 1 / median, rate * 1e-9, 100 * rate / machine.read_bytes_per_s,
             machine.read_bytes_per_s * 1e-9);
  const double held = static_cast<double>(engine->memory().weight_bytes + engine->memory().cache_bytes);
  fmt::print("memory     peak resident {:.3f} GB, weights + cache {:.3f} GB: {:.1f} %; random weights made in {:.1f} s\n",
             peak * 1e-9, held * 1e-9, 100.0 * peak / held, load_s);

  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const Clock::time_point begin = Clock::now();
    CHECK(engine->score({random_ids(512, c.vocab)}, 0).ok());
    best = std::min(best, seconds_since(begin));
  }
  const double flops = 2.0 * static_cast<double>(model::inspect(c).active_parameters) * 512;
  fmt::print("prefill    512 tokens in {:.2f} s ({:.0f} tokens/s), {:.3f} TFLOP/s = {:.0f} % of {:.3f} TFLOP/s ({})\n", best,
             512 / best, flops / best * 1e-12, 100 * flops / best / machine.matrix_flops_per_s,
             machine.matrix_flops_per_s * 1e-12, machine.matrix_unit);
}

void bench_reference(const std::string& folder, int threads) {
  double seconds[2] = {};
  for (const tensor::Device device : {tensor::Device::kCpu, tensor::Device::kReference}) {
    const std::unique_ptr<engine::Engine> engine = open(folder, device, false, threads);
    const std::vector<int32_t> ids = random_ids(2000, 1792);
    const Clock::time_point begin = Clock::now();
    CHECK(engine->score({ids}, 20).ok());
    seconds[device == tensor::Device::kReference] = seconds_since(begin);
  }
  fmt::print("reference  2,000 tokens of {}: cpu {:.3f} s, reference {:.3f} s: {:.1f} times faster\n", folder, seconds[0],
             seconds[1], seconds[1] / seconds[0]);
}

}  // namespace
}  // namespace perigee::bench

int main(int argc, char** argv) {
  CLI::App app("Speed of the engine against the machine's measured rates");
  std::string config = std::string(PERIGEE_SOURCE_DIR) + "/bench/cpu/k3_small.json";
  std::string reference = std::string(PERIGEE_SOURCE_DIR) + "/models/demo";
  int64_t tokens = 64;
  int threads = 0;
  app.add_option("--config", config, "config.json of the random model");
  app.add_option("--tokens", tokens, "tokens to decode")->check(CLI::Range(2, 100000));
  app.add_option("--reference", reference, "model scored on both devices");
  app.add_option("--threads", threads, "threads; default: all");
  CLI11_PARSE(app, argc, argv);
  perigee::bench::bench_decode(config, tokens, threads);
  perigee::bench::bench_reference(reference, threads);
  return 0;
}
