#include "bench/ops/bench_case.h"
#include "ops/conv1d/conv1d.h"
#include "ops/conv1d/conv1d_cases.h"
#include "ops/kda/kda.h"
#include "ops/kda/kda_cases.h"

namespace perigee::bench {
namespace {

using tensor::DType;

constexpr int64_t kWidth = 128;  // of keys and values, as published

std::vector<PartPlan> plans_of(int64_t sequences, int64_t rows, int64_t position) {
  std::vector<PartPlan> out;
  for (int64_t s = 0; s < sequences; ++s) out.push_back({s * rows, rows, position, {}, {static_cast<int32_t>(s)}, s});
  return out;
}

// What the sequences remember, in the layers of a model; a run takes the next layer.
struct Memory {
  Copies states;
  Copies open;
  int64_t state_bytes = 0;  // of one sequence
  int64_t open_bytes = 0;
  tensor::StatePlace next_state() { return {states.next(), state_bytes, 0}; }
  tensor::SlotPlace next_open() { return {open.next(), open_bytes}; }
};

template <class T>
Memory make_memory(Operands& on, int64_t sequences, const std::vector<T>& state, int64_t open_bytes) {
  std::vector<T> states;
  for (int64_t s = 0; s < sequences; ++s) states.insert(states.end(), state.begin(), state.end());
  const auto state_bytes = static_cast<int64_t>(state.size() * sizeof(T));
  const int64_t layers = cold_copies(sequences * (state_bytes + open_bytes));
  const std::vector<std::byte> open(static_cast<size_t>(sequences * open_bytes));
  return {on.copies(std::as_bytes(std::span(states)), layers), on.copies(open, layers), state_bytes, open_bytes};
}

ops::KdaInputs kda_inputs(Operands& on, int64_t rows, int64_t heads) {
  ops::KdaInputs in;
  uint64_t seed = 1;
  for (Tensor* x : {&in.q, &in.k, &in.v, &in.z}) *x = on.halves(seed++, {rows, heads, kWidth});
  in.b = on.halves(seed++, {rows, heads});
  in.a_log = on.floats(seed++, {heads});
  in.dt_bias = on.floats(seed++, {heads * kWidth});
  return in;
}

BenchCase kda_case(const ops::KdaBenchCase& k) {
  const int64_t rows = k.sequences * k.rows;
  const int64_t state_bytes = k.heads * kWidth * kWidth * 4;
  const int64_t closed = k.sequences * ((k.position % ops::kKdaChunk + k.rows) / ops::kKdaChunk);
  BenchCase c;
  c.op = "kda";
  c.name = fmt::format("H={} B={} T={} position={}", k.heads, k.sequences, k.rows, k.position);
  c.bytes = static_cast<double>(k.sequences * state_bytes * (closed > 0 ? 2 : 1) + rows * k.heads * kWidth * 12);
  c.flops = static_cast<double>(rows * k.heads * (4 * kWidth * kWidth + 77 * kWidth) + closed * k.heads * 32 * kWidth * kWidth);
  c.prepare = [=](Operands& on) -> Prepared {
    const ops::KdaParams params = {k.heads, kWidth, kWidth, -5.0};
    const Memory memory = make_memory(on, k.sequences, random_floats(9, k.heads * kWidth * kWidth, 0.1f),
                                      ops::kda_open_bytes(on.device(), params));
    if (k.position > 0) {  // the rows of the chunk before, in every layer
      const int64_t before = k.sequences * k.position;
      Memory first = memory;
      ops::kda(on.context(), kda_inputs(on, before, k.heads), params,
               on.parts(plans_of(k.sequences, k.position, 0), before), first.next_state(), first.next_open(),
               on.make(DType::kF32, {before, k.heads, kWidth}));
      on.spread(memory.states);
      on.spread(memory.open);
    }
    const ops::KdaInputs in = kda_inputs(on, rows, k.heads);
    const tensor::Parts parts = on.parts(plans_of(k.sequences, k.rows, k.position), rows);
    const Tensor out = on.make(DType::kF32, {rows, k.heads, kWidth});
    const auto run = [=, &context = on.context(), layers = memory]() mutable {
      ops::kda(context, in, params, parts, layers.next_state(), layers.next_open(), out);
    };
    const Tensor state = tensor::view(reinterpret_cast<float*>(memory.states.at(0)), {k.sequences * state_bytes / 4});
    return {run, {out, state}};
  };
  return c;
}

BenchCase conv_case(const ops::ConvBenchCase& v) {
  const int64_t rows = v.sequences * v.rows;
  BenchCase c;
  c.op = "conv1d";
  c.name = fmt::format("N={} width={} B={} T={}", v.channels, v.width, v.sequences, v.rows);
  c.bytes = static_cast<double>(4 * rows * v.channels + 4 * v.channels * v.width);
  c.flops = static_cast<double>((2 * v.width + 30) * rows * v.channels);
  c.prepare = [=](Operands& on) -> Prepared {
    const Memory memory = make_memory(on, v.sequences, random_halves(9, (v.width - 1) * v.channels),
                                      ops::kConvChunk * v.channels * 2);
    const Tensor x = on.halves(1, {rows, v.channels});
    const Tensor weight = on.floats(2, {v.channels, v.width});
    const Tensor out = on.make(DType::kBF16, {rows, v.channels});
    const tensor::Parts parts = on.parts(plans_of(v.sequences, v.rows, v.position), rows);
    const auto run = [=, &context = on.context(), layers = memory]() mutable {
      ops::causal_conv1d(context, x, weight, parts, layers.next_state(), layers.next_open(), out);
    };
    return {run, {out}};
  };
  return c;
}

}  // namespace

std::vector<BenchCase> kda_bench(tensor::Device) {
  std::vector<BenchCase> cases;
  for (const ops::KdaBenchCase& k : ops::kKdaBenchCases) cases.push_back(kda_case(k));
  for (const ops::ConvBenchCase& v : ops::kConvBenchCases) cases.push_back(conv_case(v));
  return cases;
}

}  // namespace perigee::bench
