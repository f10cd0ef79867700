#include "bench/engine/decode_sweep.h"

#include <algorithm>
#include <chrono>

#include "base/rng.h"
#include "bench/engine/step_bytes.h"
#include "engine/logit_rows.h"

namespace perigee::bench {
namespace {

using Clock = std::chrono::steady_clock;
using model::Sequence;

constexpr int64_t kRealTokens = 2048;
constexpr int64_t kWarm = 5;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<int32_t> random_ids(int64_t n, int64_t vocab) {
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(random_bits(1, i) % static_cast<uint64_t>(vocab));
  return out;
}

void run_prompt(model::Decoder& decoder, Sequence& sequence, std::span<const int32_t> ids, int64_t chunk) {
  for (int64_t done = 0; done < static_cast<int64_t>(ids.size()); done += chunk) {
    model::Step step;
    const int64_t rows = std::min(chunk, static_cast<int64_t>(ids.size()) - done);
    step.append(&sequence, ids.subspan(static_cast<size_t>(done), static_cast<size_t>(rows)));
    decoder.forward(step);
  }
}

// Fills every sequence with copies of what the first has been through.
void spread(model::StatePool& pool, int64_t context) {
  Sequence& first = pool.sequence(0);
  const int64_t block = pool.layout().block_tokens();
  const int64_t real = first.length();
  for (size_t i = 0; i < pool.size(); ++i) {
    Sequence& s = pool.sequence(i);
    for (int64_t at = i == 0 ? real : 0; at < context; at += block) {
      const int32_t from = first.blocks()[static_cast<size_t>(at % real / block)];
      pool.copy_tokens(from, s.blocks()[static_cast<size_t>(at / block)], std::min(block, std::min(real, context - at)));
    }
    for (size_t g = 0; i > 0 && g < s.states().size(); ++g) pool.copy_states(first.states()[g], s.states()[g]);
    s.advance(context - s.length());
  }
}

}  // namespace

Result<DecodeCase> time_decode(const engine::Engine& engine, int64_t batch, int64_t context, int64_t steps) {
  CHECK(context % ops::kKdaChunk == 0 && context > 0);
  const model::Config& c = engine.config();
  const tensor::Mover mover = engine.context().mover();
  const int64_t length = context + 2 * (kWarm + steps);
  auto pool = model::StatePool::for_lengths(c, mover, engine.formats(), std::vector<int64_t>(static_cast<size_t>(batch), length));
  if (!pool.ok()) return pool.error();
  const int64_t block = (*pool)->layout().block_tokens();
  const int64_t real = std::min(context, std::max(kRealTokens, block) / block * block);
  const int64_t chunk = std::min(real, engine.batched_tokens());
  auto decoder = engine.make_decoder(std::max(batch, chunk), length);
  if (!decoder.ok()) return decoder.error();
  const int64_t held = std::min(batch, engine::LogitRows::rows_for(engine.device(), c.vocab));
  auto logits = engine::LogitRows::create(engine.context(), held, c.vocab, c.hidden);
  if (!logits.ok()) return logits.error();
  run_prompt(**decoder, (*pool)->sequence(0), random_ids(real, c.vocab), chunk);
  spread(**pool, context);

  const std::vector<int32_t> ids = random_ids(length, c.vocab);
  int64_t made = 0;
  const auto forward = [&] {
    model::Step step;
    for (int64_t i = 0; i < batch; ++i) {
      step.append(&(*pool)->sequence(static_cast<size_t>(i)), std::span(ids).subspan(static_cast<size_t>(made), 1));
    }
    ++made;
    return (*decoder)->forward(step);
  };
  const auto draw = [&](const model::Tensor& hidden) {
    for (int64_t done = 0; done < batch; done += held) {
      std::vector<int64_t> rows;
      std::vector<ops::SampleParams> params;
      for (int64_t i = done; i < std::min(batch, done + held); ++i) {
        rows.push_back(i);
        params.push_back({1, 1, 0, 0, static_cast<uint64_t>(i), context + made, 0});
      }
      logits->compute(**decoder, hidden, rows);
      logits->draw(params);
    }
  };
  const auto time = [&](auto&& step) {
    for (int64_t i = 0; i < kWarm; ++i) step();
    mover.wait("warming up");
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < steps; ++i) step();
    mover.wait("decode steps");
    return seconds_since(start) / static_cast<double>(steps);
  };
  DecodeCase out;
  out.batch = batch;
  out.context = context;
  out.forward_s = time([&] { forward(); });
  out.step_s = time([&] { draw(forward()); });
  out.bytes = step_bytes(c, (*pool)->layout(), batch, context).total();
  return out;
}

Result<double> time_prefill(const engine::Engine& engine, int64_t tokens) {
  const tensor::Mover mover = engine.context().mover();
  auto pool = model::StatePool::for_lengths(engine.config(), mover, engine.formats(), {tokens});
  if (!pool.ok()) return pool.error();
  const int64_t chunk = std::min(tokens, engine.batched_tokens());
  auto decoder = engine.make_decoder(chunk, tokens);
  if (!decoder.ok()) return decoder.error();
  const std::vector<int32_t> ids = random_ids(tokens, engine.config().vocab);
  run_prompt(**decoder, (*pool)->sequence(0), std::span(ids).first(static_cast<size_t>(chunk)), chunk);  // loads the kernels
  (*pool)->sequence(0).reset();
  mover.wait("warming up");
  const Clock::time_point start = Clock::now();
  run_prompt(**decoder, (*pool)->sequence(0), ids, chunk);
  mover.wait("prefill");
  return seconds_since(start);
}

}  // namespace perigee::bench
