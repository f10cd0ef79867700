#include <memory>

#include "base/rng.h"
#include "bench/cpu/bench_case.h"
#include "ops/kda/kda.h"

namespace perigee::bench {
namespace {

constexpr int64_t kHeads = 96;
constexpr int64_t kWidth = 128;      // of keys and values, as published
constexpr int64_t kColdStates = 40;  // 240 MiB of states to walk over: layers of a model

struct KdaBenchData {
  std::vector<bf16> q, k, v, z, b;
  std::vector<float> a_log, dt_bias, out;
  std::vector<std::vector<float>> states;
  std::vector<std::vector<std::byte>> open;
  size_t next = 0;
};

std::vector<bf16> half_values(uint64_t seed, int64_t n) {
  std::vector<bf16> out(static_cast<size_t>(n));
  for (size_t i = 0; i < out.size(); ++i) out[i] = to_bf16(2 * random_uniform(seed, i) - 1);
  return out;
}

// One sequence gets `rows` rows from `position` on.
BenchCase kda_case(int64_t rows, int64_t position) {
  BenchCase c;
  c.op = "kda";
  c.name = fmt::format("rows={} position={} heads=96", rows, position);
  const int64_t state_bytes = kHeads * kWidth * kWidth * 4;
  const int64_t closed = (position + rows) / ops::kKdaChunk;
  c.bytes = static_cast<double>(state_bytes + (closed > 0 ? state_bytes : 0) +
                                rows * kHeads * kWidth * 12);
  c.flops = static_cast<double>(rows * kHeads * (4 * kWidth * kWidth + 77 * kWidth) +
                                closed * kHeads * 32 * kWidth * kWidth);
  c.prepare = [=](const ops::Context& context) -> std::function<void()> {
    auto d = std::make_shared<KdaBenchData>();
    const int64_t n = rows * kHeads * kWidth;
    const ops::KdaParams params = {kHeads, kWidth, kWidth, -5.0};
    for (auto* x : {&d->q, &d->k, &d->v, &d->z}) *x = half_values(d->next++, n);
    d->b = half_values(4, rows * kHeads);
    d->a_log.resize(static_cast<size_t>(kHeads));
    d->dt_bias.resize(static_cast<size_t>(kHeads * kWidth));
    d->out.resize(static_cast<size_t>(n));
    d->states.assign(kColdStates, std::vector<float>(static_cast<size_t>(state_bytes / 4), 0.01f));
    const auto open_bytes = static_cast<size_t>(ops::kda_open_bytes(tensor::Device::kCpu, params));
    d->open.assign(kColdStates, std::vector<std::byte>(open_bytes));
    return [=, &context] {
      const auto wide = [&](std::vector<bf16>& x) {
        return tensor::view(x.data(), {rows, kHeads, kWidth});
      };
      const size_t at = d->next++ % kColdStates;
      const ops::KdaSequence s = {0, rows, position, d->states[at].data(), d->open[at].data()};
      ops::kda(context, wide(d->q), wide(d->k), wide(d->v), wide(d->z),
               tensor::view(d->b.data(), {rows, kHeads}), tensor::view(d->a_log.data(), {kHeads}),
               tensor::view(d->dt_bias.data(), {kHeads * kWidth}), params, {&s, 1},
               tensor::view(d->out.data(), {rows, kHeads, kWidth}));
    };
  };
  return c;
}

}  // namespace

std::vector<BenchCase> kda_bench() {
  return {kda_case(1, 0), kda_case(1, 8),  kda_case(1, 15),
          kda_case(4, 0), kda_case(16, 0), kda_case(256, 0)};
}

}  // namespace perigee::bench
