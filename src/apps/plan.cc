// perigee plan: how many tokens and full contexts fit, row by row, from the configuration alone.
#include "apps/commands.h"
#include "apps/options.h"
#include "engine/engine.h"
#include "model/capacity.h"

namespace perigee::apps {
namespace {

struct Flags {
  std::string model;
  std::string kv_cache_dtype = "auto";
  std::string index_key_dtype = "auto";
  model::CapacityOptions capacity;
  bool json = false;
};

Result<model::Capacity> plan(const Flags& flags) {
  const Result<model::Config> config = model::read_config(flags.model);
  if (!config.ok()) return config.error();
  ModelFlags words;
  words.kv_cache_dtype = flags.kv_cache_dtype;
  words.index_key_dtype = flags.index_key_dtype;
  const Result<engine::EngineOptions> options = engine_options(words);
  if (!options.ok()) return options.error();
  const Result<model::CacheFormats> formats = engine::choose_formats(*config, *options);
  if (!formats.ok()) return formats.error();
  if (flags.capacity.pool_bytes == 0 && flags.capacity.device_bytes == 0) {
    return invalid_argument("give --pool-bytes, the bytes of one device's row pool, or --device-memory-bytes");
  }
  model::CapacityOptions o = flags.capacity;
  o.formats = *formats;
  return model::plan_capacity(*config, o);
}

}  // namespace

void add_plan(CLI::App& program, int& status) {
  CLI::App* app = program.add_subcommand("plan", "How many tokens and full contexts a device's memory holds");
  auto flags = std::make_shared<Flags>();
  model::CapacityOptions& c = flags->capacity;
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 50);
  app->add_option("MODEL", flags->model, "checkpoint folder, or a config.json alone")->required();
  app->add_option("--pool-bytes", c.pool_bytes, "bytes of the row pool of one device")->check(positive);
  app->add_option("--device-memory-bytes", c.device_bytes, "bytes of one device: the pool is what the rest leaves")
      ->check(positive);
  app->add_option("--gpu-memory-utilization", c.utilization, "share of a device's memory that may be used")
      ->check(CLI::Range(0.01, 1.0));
  app->add_option("--tensor-parallel-size", c.tensor_ranks, "ranks that share each layer")->check(CLI::Range(1, 1024));
  app->add_option("--decode-context-parallel-size", c.context_ranks, "ranks that share each context")
      ->check(CLI::Range(1, 1024));
  app->add_option("--kv-cache-dtype", flags->kv_cache_dtype, "latent format: auto, bf16, fp8 or nvfp4");
  app->add_option("--index-key-dtype", flags->index_key_dtype, "index key format: auto, bf16, fp8 or mxfp4");
  app->add_option("--max-model-len", c.max_model_len, "tokens of a full context; default: the model's")->check(positive);
  app->add_option("--max-num-seqs", c.max_num_seqs, "sequences that run at once")->check(CLI::Range(1, 65536));
  app->add_option("--max-num-batched-tokens", c.batched_tokens, "tokens of a step")->check(CLI::Range(1, 1 << 20));
  app->add_flag("--json", flags->json, "machine-readable output");
  app->callback([flags, &status] {
    const Result<model::Capacity> capacity = plan(*flags);
    if (!capacity.ok()) {
      status = report(capacity.error());
      return;
    }
    fmt::print("{}", flags->json ? model::capacity_json(*capacity) : model::capacity_text(*capacity));
  });
}

}  // namespace perigee::apps
