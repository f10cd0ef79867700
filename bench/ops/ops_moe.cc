#include "base/rng.h"
#include "bench/ops/bench_case.h"
#include "ops/moe_gemm/moe_gemm.h"
#include "ops/moe_gemm/moe_gemm_cases.h"
#include "ops/moe_permute/moe_permute.h"
#include "ops/moe_permute/moe_permute_cases.h"
#include "ops/moe_route/moe_route.h"
#include "ops/moe_route/moe_route_cases.h"

namespace perigee::bench {
namespace {

using tensor::Device;
using tensor::DType;

constexpr uint64_t kRoutings = 16;  // different choices of experts, used in turn

// Distinct experts of every token, drawn again while taken.
std::vector<int32_t> draw_experts(uint64_t seed, int64_t tokens, int64_t experts, int64_t active) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<bool> taken(static_cast<size_t>(experts));
    uint64_t draw = 0;
    for (int64_t a = 0; a < active;) {
      const uint64_t bits = random_bits(seed + 977 * static_cast<uint64_t>(t), draw++);
      const auto e = static_cast<size_t>(bits % static_cast<uint64_t>(experts));
      if (taken[e]) continue;
      taken[e] = true;
      ids.push_back(static_cast<int32_t>(e));
      ++a;
    }
  }
  return ids;
}

struct Routing {
  std::vector<int32_t> offsets;
  std::vector<int32_t> source;
  int64_t experts_used = 0;
};

Routing route(uint64_t i, const ops::MoeCase& c) {
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(c.experts));
  const std::vector<int32_t> ids = draw_experts(100 + i, c.tokens, c.experts, c.active);
  for (size_t s = 0; s < ids.size(); ++s) {
    rows[static_cast<size_t>(ids[s])].push_back(static_cast<int32_t>(static_cast<int64_t>(s) / c.active));
  }
  Routing r;
  r.offsets.push_back(0);
  for (const auto& of_expert : rows) {
    r.source.insert(r.source.end(), of_expert.begin(), of_expert.end());
    r.offsets.push_back(static_cast<int32_t>(r.source.size()));
    r.experts_used += of_expert.empty() ? 0 : 1;
  }
  return r;
}

// As in a layer: gate and up gather their tokens' rows and give what glu reads, down has a row for every slot and gives reals.
BenchCase moe_case(Device device, const ops::MoeCase& c, bool down) {
  const int64_t slots = c.tokens * c.active;
  const int64_t rows = down ? slots : c.tokens;
  const DType type = down || device == Device::kCuda ? DType::kF32 : DType::kBF16;
  BenchCase b;
  b.op = "moe_gemm";
  b.name = fmt::format("{} M={} N={} K={} E={} A={}", down ? "down" : "gate_up", c.tokens, c.n, c.k, c.experts, c.active);
  double used = 0;
  for (uint64_t i = 0; i < kRoutings; ++i) used += static_cast<double>(route(i, c).experts_used) / kRoutings;
  b.bytes = used * static_cast<double>(ops::moe_packed_bytes(expert_layout(device), c.n, c.k)) +
            static_cast<double>(2 * rows * c.k + slots * c.n * tensor::dtype_bytes(type));
  b.flops = 2.0 * static_cast<double>(slots * c.n * c.k);
  b.prepare = [=](Operands& on) -> Prepared {
    std::vector<Tensor> offsets, sources;
    for (uint64_t i = 0; i < kRoutings; ++i) {
      const Routing r = route(i, c);
      offsets.push_back(on.put(r.offsets, {c.experts + 1}));
      sources.push_back(on.put(r.source, {slots}));
    }
    const Tensor x = on.halves(2, {rows, c.k});
    const Tensor out = on.make(type, {slots, c.n});
    const auto run = [=, &context = on.context(), sets = on.expert_sets(c.experts, c.n, c.k), turn = size_t{0}]() mutable {
      const size_t routing = turn % kRoutings;
      ops::moe_gemm(context, x, down ? nullptr : &sources[routing], offsets[routing], sets[turn % sets.size()], out);
      ++turn;
    };
    return {run, {out}};
  };
  return b;
}

BenchCase route_case(const ops::RouteCase& c) {
  BenchCase b;
  b.op = "moe_route";
  b.name = fmt::format("M={} E={} A={}", c.t, c.experts, c.active);
  b.bytes = static_cast<double>(c.t * (4 * c.experts + 8 * c.active) + 4 * c.experts);
  b.flops = 30.0 * static_cast<double>(c.t * c.experts);  // one sigmoid
  b.prepare = [=](Operands& on) -> Prepared {
    const Tensor logits = on.floats(1, {c.t, c.experts}, 4);
    const Tensor bias = on.floats(2, {c.experts}, 0.1f);
    const Tensor ids = on.make(DType::kI32, {c.t, c.active});
    const Tensor weights = on.make(DType::kF32, {c.t, c.active});
    const auto run = [=, &context = on.context()] {
      ops::moe_route(context, logits, bias, {c.active, true, 2.5}, ids, weights);
    };
    return {run, {ids, weights}};
  };
  return b;
}

BenchCase permute_case(const ops::RouteCase& c) {
  BenchCase b;
  b.op = "moe_permute";
  b.name = fmt::format("M={} E={} A={}", c.t, c.experts, c.active);
  b.bytes = static_cast<double>(16 * c.t * c.active + 4 * c.experts);
  b.prepare = [=](Operands& on) -> Prepared {
    const Tensor ids = on.put(draw_experts(3, c.t, c.experts, c.active), {c.t, c.active});
    const Tensor offsets = on.make(DType::kI32, {c.experts + 1});
    const Tensor source = on.make(DType::kI32, {c.t * c.active});
    const Tensor place = on.make(DType::kI32, {c.t, c.active});
    const auto run = [=, &context = on.context()] {
      ops::moe_permute(context, ids, c.experts, offsets, source, place);
    };
    return {run, {offsets, source, place}};
  };
  return b;
}

BenchCase combine_case(const ops::CombineCase& c) {
  BenchCase b;
  b.op = "moe_combine";
  b.name = fmt::format("M={} A={} Z={}", c.t, c.active, c.width);
  b.bytes = static_cast<double>(c.t * (4 * c.active * c.width + 2 * c.width));
  b.flops = 2.0 * static_cast<double>(c.t * c.active * c.width);
  b.prepare = [=](Operands& on) -> Prepared {
    const int64_t slots = c.t * c.active;
    std::vector<int32_t> places;
    for (int64_t i = 0; i < slots; ++i) places.push_back(static_cast<int32_t>(i * 7 % slots));
    const Tensor y = on.floats(1, {slots, c.width});
    const Tensor place = on.put(places, {c.t, c.active});
    const Tensor weights = on.floats(2, {c.t, c.active});
    const Tensor out = on.make(DType::kBF16, {c.t, c.width});
    const auto run = [=, &context = on.context()] { ops::moe_combine(context, y, place, weights, out); };
    return {run, {out}};
  };
  return b;
}

}  // namespace

std::vector<BenchCase> moe_bench(Device device) {
  std::vector<BenchCase> cases;
  for (const ops::MoeCase& c : ops::kMoeGateUpBenchCases) cases.push_back(moe_case(device, c, false));
  for (const ops::MoeCase& c : ops::kMoeBenchCases) cases.push_back(moe_case(device, c, true));
  for (const ops::RouteCase& c : ops::kRouteBenchCases) cases.push_back(route_case(c));
  for (const ops::RouteCase& c : ops::kRouteBenchCases) cases.push_back(permute_case(c));
  for (const ops::CombineCase& c : ops::kCombineBenchCases) cases.push_back(combine_case(c));
  return cases;
}

}  // namespace perigee::bench
