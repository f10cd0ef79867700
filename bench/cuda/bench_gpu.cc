// Times a model on the GPU: decode steps of 1, 64 and 512 sequences with and without drawing tokens, and prefill.
//   perigee_bench_gpu MODEL
// Prints CSV. A decode step is one forward pass of one token a sequence, launched as a graph; "model" leaves out logits
// and the draw, "generate" is Engine::generate as a whole.
#include <algorithm>
#include <chrono>

#include "base/rng.h"
#include "engine/engine.h"

namespace perigee {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarm = 20;
constexpr int kSteps = 100;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<int32_t> random_ids(int64_t n, int64_t vocab) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i) {
    out.push_back(static_cast<int32_t>(random_bits(1, static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab)));
  }
  return out;
}

std::unique_ptr<model::StatePool> make_pool(const engine::Engine& engine, int64_t sequences, int64_t tokens) {
  auto pool = model::StatePool::for_lengths(engine.config(), engine.context().mover(), engine.formats(),
                                            std::vector<int64_t>(static_cast<size_t>(sequences), tokens));
  CHECK(pool.ok());
  return std::move(*pool);
}

// Seconds of a step of one token for each of `batch` sequences that hold `context` tokens.
double decode(const engine::Engine& engine, int64_t batch, int64_t context) {
  const auto pool = make_pool(engine, batch, context + kWarm + kSteps);
  const auto decoder = std::move(engine.make_decoder(std::max(batch, context), context + kWarm + kSteps)).value();
  const std::vector<int32_t> prompt = random_ids(context, engine.config().vocab);
  for (int64_t i = 0; i < batch; ++i) {
    model::Step step;
    step.append(&pool->sequence(static_cast<size_t>(i)), prompt);
    decoder->forward(step);
  }
  const std::vector<int32_t> ids = random_ids(kWarm + kSteps, engine.config().vocab);
  Clock::time_point start;
  for (int n = 0; n < kWarm + kSteps; ++n) {
    if (n == kWarm) {
      engine.context().mover().wait("warming up");
      start = Clock::now();
    }
    model::Step step;
    for (int64_t i = 0; i < batch; ++i) {
      step.append(&pool->sequence(static_cast<size_t>(i)), std::span(ids).subspan(static_cast<size_t>(n), 1));
    }
    decoder->forward(step);
  }
  engine.context().mover().wait("decode");
  return seconds_since(start) / kSteps;
}

double generate(engine::Engine& engine, int64_t batch, int64_t context) {
  std::vector<engine::GenerateRequest> requests(static_cast<size_t>(batch));
  for (engine::GenerateRequest& r : requests) {
    r.prompt = random_ids(context, engine.config().vocab);
    r.max_tokens = 1 + kSteps;
  }
  int64_t seen = 0;
  Clock::time_point start;
  const auto made = engine.generate(requests, [&](size_t, const engine::GeneratedToken&) {
    if (++seen == batch) start = Clock::now();  // every prompt has been run
    return true;
  });
  CHECK(made.ok());
  return seconds_since(start) / kSteps;
}

double prefill(const engine::Engine& engine, int64_t tokens, int64_t chunk) {
  const auto pool = make_pool(engine, 1, tokens);
  const auto decoder = std::move(engine.make_decoder(chunk, tokens)).value();
  const std::vector<int32_t> ids = random_ids(tokens, engine.config().vocab);
  Clock::time_point start = Clock::now();
  for (int64_t done = 0; done < tokens; done += chunk) {
    model::Step step;
    step.append(&pool->sequence(0),
                std::span(ids).subspan(static_cast<size_t>(done), static_cast<size_t>(std::min(chunk, tokens - done))));
    decoder->forward(step);
  }
  engine.context().mover().wait("prefill");
  return seconds_since(start);
}

int run(const std::string& model) {
  engine::EngineOptions options;
  options.model = model;
  options.device = tensor::Device::kCuda;
  const Clock::time_point start = Clock::now();
  auto opened = engine::Engine::open(options);
  if (!opened.ok()) {
    fmt::print(stderr, "{}\n", opened.error().message);
    return 2;
  }
  engine::Engine& engine = **opened;
  fmt::print("open,{:.3f} s,{:.3f} GB\n", seconds_since(start),
             static_cast<double>(engine.memory().weight_bytes) * 1e-9);
  fmt::print("what,batch,context,ms a step,tokens/s\n");
  for (const auto& [batch, context] :
       {std::pair<int64_t, int64_t>{1, 64}, {1, 4096}, {64, 64}, {64, 4096}, {512, 64}}) {
    const double model_s = decode(engine, batch, context);
    fmt::print("model,{},{},{:.4f},{:.0f}\n", batch, context, model_s * 1e3, static_cast<double>(batch) / model_s);
  }
  for (const int64_t batch : {1, 64, 512}) {
    const double s = generate(engine, batch, 64);
    fmt::print("generate,{},64,{:.4f},{:.0f}\n", batch, s * 1e3, static_cast<double>(batch) / s);
  }
  for (const int64_t tokens : {2048, 16384, 65536}) {
    const double s = prefill(engine, tokens, 2048);
    fmt::print("prefill,1,{},{:.2f},{:.0f}\n", tokens, s * 1e3, static_cast<double>(tokens) / s);
  }
  return 0;
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: perigee_bench_gpu MODEL\n");
    return 2;
  }
  return perigee::run(argv[1]);
}
