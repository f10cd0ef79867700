// What    The flags that generate, score and chat share, and their way into the engine's options.
// Owner   apps. The one place where command-line words become values.
// Threads Plain data.
// Errors  Result with the flag's name.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/result.h"
#include "engine/engine.h"

namespace perigee::apps {

struct ModelFlags {
  std::string model;
  std::string device = "cpu";
  std::string kv_cache_dtype = "auto";
  std::string index_key_dtype = "auto";
  std::string load_format = "auto";
  std::string isa = "auto";
  std::string stats;
  int64_t max_num_batched_tokens = 0;
  int threads = 0;
  uint64_t seed = 0;
  bool json = false;
};

struct SamplingFlags {
  double temperature = 1.0;
  double top_p = 1.0;
  double min_p = 0.0;
  int64_t top_k = 0;
  int64_t max_tokens = 0;  // 0: the command's default
};

void add_model_flags(CLI::App& app, ModelFlags& flags);  // MODEL and all others
void add_run_flags(CLI::App& app, ModelFlags& flags);    // all but MODEL
void add_sampling_flags(CLI::App& app, SamplingFlags& flags);

// The device that --device names; a GPU is opened.
Result<tensor::Device> device_of(const std::string& name);
Result<engine::EngineOptions> engine_options(const ModelFlags& flags);
Result<engine::SamplingOptions> sampling_options(const SamplingFlags& flags, uint64_t seed);

// Opens the engine with a progress bar on stderr when that is a terminal.
Result<std::unique_ptr<engine::Engine>> open_engine(const ModelFlags& flags);

// One JSON line: rank, weight_bytes, cache_bytes, exchanges, exchange_bytes.
Status write_stats(const std::string& path, const engine::Engine& engine);

// Prints the sentence on stderr and gives the exit status: 2 for input and environment, 1 for faults of ours.
int report(const Error& error);

}  // namespace perigee::apps
