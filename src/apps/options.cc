#include "apps/options.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "apps/progress.h"
#include "tensor/gpu.h"

namespace perigee::apps {
namespace {

Result<std::optional<LatentFormat>> latent_format(const std::string& name) {
  if (name == "auto") return std::optional<LatentFormat>();
  if (name == "bf16") return std::optional(LatentFormat::kBf16);
  if (name == "fp8") return std::optional(LatentFormat::kFp8);
  if (name == "nvfp4") return std::optional(LatentFormat::kNvfp4);
  return invalid_argument("--kv-cache-dtype is '{}'; use auto, bf16, fp8 or nvfp4", name);
}

Result<std::optional<KeyFormat>> key_format(const std::string& name) {
  if (name == "auto") return std::optional<KeyFormat>();
  if (name == "bf16") return std::optional(KeyFormat::kBf16);
  if (name == "fp8") return std::optional(KeyFormat::kFp8);
  if (name == "mxfp4") return std::optional(KeyFormat::kMxfp4);
  return invalid_argument("--index-key-dtype is '{}'; use auto, bf16, fp8 or mxfp4", name);
}

}  // namespace

Result<tensor::Device> device_of(const std::string& name) {
  if (name == "cpu") return tensor::Device::kCpu;
  if (name == "reference") return tensor::Device::kReference;
  if (name == "cuda") {
    const Result<tensor::GpuInfo> gpu = tensor::open_gpu(0);
    if (!gpu.ok()) return invalid_argument("--device cuda: {}", gpu.error().message);
    return tensor::Device::kCuda;
  }
  return invalid_argument("--device is '{}'; use cpu, cuda or reference", name);
}

void add_model_flags(CLI::App& app, ModelFlags& flags) {
  app.add_option("MODEL", flags.model, "checkpoint folder")->required();
  add_run_flags(app, flags);
}

void add_run_flags(CLI::App& app, ModelFlags& flags) {
  app.add_option("--device", flags.device, "cpu, cuda or reference (double precision)");
  app.add_option("--kv-cache-dtype", flags.kv_cache_dtype, "latent format: auto, bf16, fp8 or nvfp4");
  app.add_option("--index-key-dtype", flags.index_key_dtype,
                 "index key format: auto, bf16, fp8 or mxfp4; without an indexer it means nothing");
  app.add_option("--max-num-batched-tokens", flags.max_num_batched_tokens,
                 "most tokens of one step (prefill chunk)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--load-format", flags.load_format,
                 "auto, safetensors (maps files), fastsafetensors (reads them in parallel; auto on a GPU) or dummy (seeded "
                 "random weights)");
  app.add_option("--isa", flags.isa,
                 "at most these CPU instructions: auto, generic, avx2, avx512 or amx; the bits are the same")
      ->check(CLI::IsMember({"auto", "generic", "avx2", "avx512", "amx"}));
  app.add_option("--threads", flags.threads, "threads; default: all that the process may use")
      ->check(CLI::Range(1, 1024));
  app.add_option("--seed", flags.seed, "seed of sampling and of dummy weights");
  app.add_option("--stats", flags.stats, "write one JSON line with byte counts to this file");
  app.add_flag("--json", flags.json, "machine-readable output");
}

void add_sampling_flags(CLI::App& app, SamplingFlags& flags) {
  app.add_option("--temperature", flags.temperature, "0 takes the most likely token; default 1");
  app.add_option("--top-p", flags.top_p, "keep the most likely tokens up to this probability mass");
  app.add_option("--top-k", flags.top_k, "keep this many most likely tokens; 0 keeps all");
  app.add_option("--min-p", flags.min_p, "drop tokens below this share of the most likely one's probability");
  app.add_option("--max-tokens", flags.max_tokens, "most new tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
}

Result<engine::EngineOptions> engine_options(const ModelFlags& flags) {
  engine::EngineOptions o;
  o.model = flags.model;
  const Result<tensor::Device> device = device_of(flags.device);
  if (!device.ok()) return device.error();
  o.device = *device;
  const Result<std::optional<LatentFormat>> latent = latent_format(flags.kv_cache_dtype);
  if (!latent.ok()) return latent.error();
  o.latent = *latent;
  const Result<std::optional<KeyFormat>> key = key_format(flags.index_key_dtype);
  if (!key.ok()) return key.error();
  o.key = *key;
  o.batched_tokens = flags.max_num_batched_tokens;
  o.threads = flags.threads;
  o.isa = flags.isa;
  o.load.seed = flags.seed;
  if (flags.load_format == "dummy") {
    o.load.source = model::LoadOptions::Source::kDummy;
  } else if (flags.load_format == "safetensors") {
    o.load.source = model::LoadOptions::Source::kSafetensors;
  } else if (flags.load_format == "fastsafetensors") {
    o.load.source = model::LoadOptions::Source::kFastSafetensors;
  } else if (flags.load_format != "auto") {
    return invalid_argument("--load-format is '{}'; use auto, safetensors, fastsafetensors or dummy",
                            flags.load_format);
  }
  return o;
}

Result<engine::SamplingOptions> sampling_options(const SamplingFlags& flags, uint64_t seed) {
  const auto within = [](double x, double low, double high) { return x >= low && x <= high; };
  if (!within(flags.temperature, 0, 1e6)) {
    return invalid_argument("--temperature is {}; it must be at least 0", flags.temperature);
  }
  if (!(flags.top_p > 0 && flags.top_p <= 1)) {
    return invalid_argument("--top-p is {}; it must be above 0 and at most 1", flags.top_p);
  }
  if (!within(flags.min_p, 0, 1)) {
    return invalid_argument("--min-p is {}; it must be between 0 and 1", flags.min_p);
  }
  if (flags.top_k < 0) return invalid_argument("--top-k is {}; it must be at least 0", flags.top_k);
  return engine::SamplingOptions{flags.temperature, flags.top_p, flags.min_p, flags.top_k, seed};
}

Result<std::unique_ptr<engine::Engine>> open_engine(const ModelFlags& flags) {
  Result<engine::EngineOptions> options = engine_options(flags);
  if (!options.ok()) return options.error();
  ProgressBar bar("loading " + flags.model);
  options->load.progress = [&](size_t done, size_t total) { bar.update(done, total); };
  Result<std::unique_ptr<engine::Engine>> engine = engine::Engine::open(*options);
  bar.finish();
  return engine;
}

Status write_stats(const std::string& path, const engine::Engine& engine) {
  if (path.empty()) return {};
  const engine::MemoryUse& m = engine.memory();
  return write_file(path, fmt::format("{{\"rank\":0,\"weight_bytes\":{},\"cache_bytes\":{},\"exchanges\":0,"
                                      "\"exchange_bytes\":0}}\n",
                                      m.weight_bytes, m.cache_bytes));
}

int report(const Error& error) {
  std::fflush(stdout);
  fmt::print(stderr, "perigee: {}\n", error.message);
  return error.code == ErrorCode::kInternal ? 1 : 2;
}

}  // namespace perigee::apps
