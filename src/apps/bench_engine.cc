// perigee bench engine: decode and prefill of a model, or of one rank's share of it, over batch sizes and context lengths.
#include "apps/commands.h"
#include "apps/options.h"
#include "base/file.h"
#include "bench/engine/decode_sweep.h"
#include "bench/ops/rates.h"
#include "model/slice.h"
#include "tensor/gpu.h"

namespace perigee::apps {
namespace {

struct Flags {
  ModelFlags model;
  std::string slice;
  int64_t layers = 0;
  std::vector<int64_t> batches = {1, 8, 64};
  std::vector<int64_t> contexts = {1024, 8192};
  std::vector<int64_t> prefills;
  int64_t steps = 50;
  std::string csv;
};

std::string device_name(const engine::Engine& engine) {
  if (engine.device() != tensor::Device::kCuda) return fmt::format("{} threads", engine.threads());
  const Result<tensor::GpuInfo> gpu = tensor::open_gpu(0);
  return gpu.ok() ? gpu->name : "GPU";
}

// What the numbers below stand for.
std::string describe(const Flags& flags, const engine::Engine& engine, double copy_rate) {
  const model::Config& c = engine.config();
  const char* const made = flags.model.load_format == "dummy" ? "random" : "as loaded";
  std::string out = fmt::format("{}: {} layers, {:.2f} GB of weights ({}), latents {}, index keys {}, {}\n", flags.model.model,
                                c.layers, static_cast<double>(engine.memory().weight_bytes) * 1e-9, made,
                                engine::format_name(engine.formats().latent), engine::format_name(engine.formats().key),
                                device_name(engine));
  if (!flags.slice.empty()) {
    out += fmt::format(
        "one rank of {}: {} attention and {} KDA heads, {} experts of width {}, {} rows of the vocabulary; latent projections, "
        "router and indexer whole; exchanges between ranks are left out\n",
        flags.slice, c.heads, c.kda_heads, c.experts, c.expert_width, c.vocab);
  }
  out += fmt::format(
      "floor: weights, states, latents and keys that a step must move, at {:.0f} GB/s (a large copy, read and written)\n"
      "forward: layers alone, steps one after the other; step: with logits and a drawn token, waiting for each; {} steps "
      "after 5\n",
      copy_rate * 1e-9, flags.steps);
  return out;
}

Status run(const Flags& flags) {
  Result<engine::EngineOptions> options = engine_options(flags.model);
  if (!options.ok()) return options.error();
  const Result<model::Slice> slice = model::parse_slice(flags.slice);
  if (!slice.ok()) return slice.error();
  options->slice = *slice;
  options->slice.layers = flags.layers;
  for (const int64_t context : flags.contexts) {
    if (context % ops::kKdaChunk != 0) {
      return invalid_argument("--context has {}; use multiples of {}", context, ops::kKdaChunk);
    }
  }
  const Result<std::unique_ptr<engine::Engine>> opened = engine::Engine::open(*options);
  if (!opened.ok()) return opened.error();
  const engine::Engine& engine = **opened;
  const double rate = bench::copy_bytes_per_s(engine.context());
  fmt::print("{}", describe(flags, engine, rate));
  std::string csv = "what,batch,context,forward_ms,step_ms,tokens_per_s,gigabytes,floor_ms,forward_over_floor\n";
  fmt::print("{}", csv);
  const auto line = [&](const std::string& text) {
    fmt::print("{}", text);
    std::fflush(stdout);
    csv += text;
  };
  for (const int64_t context : flags.contexts) {
    for (const int64_t batch : flags.batches) {
      const Result<bench::DecodeCase> c = bench::time_decode(engine, batch, context, flags.steps);
      if (!c.ok()) return c.error();
      const double floor = c->bytes / rate;
      line(fmt::format("decode,{},{},{:.4f},{:.4f},{:.0f},{:.4f},{:.4f},{:.2f}\n", batch, context, c->forward_s * 1e3,
                       c->step_s * 1e3, static_cast<double>(batch) / c->step_s, c->bytes * 1e-9, floor * 1e3,
                       c->forward_s / floor));
    }
  }
  for (const int64_t tokens : flags.prefills) {
    const Result<double> s = bench::time_prefill(engine, tokens);
    if (!s.ok()) return s.error();
    line(fmt::format("prefill,1,{},{:.4f},,{:.0f},,,\n", tokens, *s * 1e3, static_cast<double>(tokens) / *s));
  }
  return flags.csv.empty() ? Status() : write_file(flags.csv, csv);
}

}  // namespace

void add_bench_engine(CLI::App& bench, int& status) {
  CLI::App* app = bench.add_subcommand("engine", "Decode and prefill of a model over batch sizes and context lengths");
  auto flags = std::make_shared<Flags>();
  const auto sizes = CLI::Range(int64_t{1}, int64_t{1} << 24);
  add_model_flags(*app, flags->model);
  app->add_option("--slice", flags->slice, "one rank's share, with --load-format dummy: tp8, tp16, ep16, ...");
  app->add_option("--layers", flags->layers, "only the first layers, with --load-format dummy")->check(CLI::Range(1, 4096));
  app->add_option("--batch", flags->batches, "sequences that decode at once, separated by commas")->delimiter(',')->check(sizes);
  app->add_option("--context", flags->contexts, "tokens that each sequence holds, separated by commas")
      ->delimiter(',')
      ->check(sizes);
  app->add_option("--prefill", flags->prefills, "prompt lengths to prefill, separated by commas")->delimiter(',')->check(sizes);
  app->add_option("--steps", flags->steps, "timed steps of each case")->check(CLI::Range(1, 100000));
  app->add_option("--csv", flags->csv, "also write the table to this file");
  app->callback([flags, &status] {
    const Status done = run(*flags);
    if (!done.ok()) status = report(done.error());
  });
}

}  // namespace perigee::apps
