#include <cstring>
#include <memory>

#include "bench/cpu/bench_case.h"
#include "ops/gemm/gemm_cases.h"
#include "ops/moe_gemm/moe_gemm.h"
#include "ops/moe_gemm/moe_gemm_cases.h"
#include "ops/moe_permute/moe_permute.h"
#include "ops/moe_permute/moe_permute_cases.h"
#include "ops/moe_route/moe_route.h"
#include "ops/moe_route/moe_route_cases.h"
#include "tensor/arena.h"

namespace perigee::bench {
namespace {

constexpr int64_t kLayers = 3;     // expert sets to walk over, about 1 GiB together
constexpr int64_t kRoutings = 16;  // different choices of experts

struct Routing {
  std::vector<int32_t> offsets;
  std::vector<int32_t> source;
  int64_t experts_used = 0;
};

Routing route(uint64_t seed, const ops::MoeCase& c) {
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(c.experts));
  for (int64_t t = 0; t < c.tokens; ++t) {
    // Distinct experts: drawn again while taken.
    std::vector<bool> taken(static_cast<size_t>(c.experts));
    uint64_t draw = 0;
    for (int64_t a = 0; a < c.active;) {
      const uint64_t bits = random_bits(seed + 977 * static_cast<uint64_t>(t), draw++);
      const auto e = static_cast<size_t>(bits % static_cast<uint64_t>(c.experts));
      if (taken[e]) continue;
      taken[e] = true;
      rows[e].push_back(static_cast<int32_t>(t));
      ++a;
    }
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

struct MoeData {
  tensor::Arena arena;  // huge pages, as the engine's weights
  std::vector<std::vector<ops::Weight>> layers;
  std::vector<Routing> routings;
  int64_t next = 0;
  std::vector<bf16> x;
  std::vector<bf16> out;
};

std::shared_ptr<MoeData> make_moe(const ops::MoeCase& c) {
  auto d = std::make_shared<MoeData>();
  const int64_t bytes = ops::moe_packed_bytes(tensor::WeightLayout::kTiledMxfp4, c.n, c.k);
  const auto all = static_cast<size_t>(bytes * c.experts * kLayers);
  Result<tensor::Arena> arena = tensor::Arena::create(all, "weights of the benchmark");
  CHECK(arena.ok());
  d->arena = std::move(arena.value());
  auto* const weights = reinterpret_cast<uint8_t*>(d->arena.allocate(all));
  const ops::Mxfp4Rows rows = ops::random_mxfp4(1, c.n, c.k);
  ops::moe_pack_mxfp4(tensor::WeightLayout::kTiledMxfp4, rows.codes.data(), rows.scales.data(), c.n, c.k, weights, c.n, 0);
  for (int64_t i = 0; i < c.experts * kLayers; ++i) {
    uint8_t* const to = weights + i * bytes;
    if (i > 0) std::memcpy(to, weights, static_cast<size_t>(bytes));
    if (i % c.experts == 0) d->layers.emplace_back();
    d->layers.back().push_back({tensor::WeightLayout::kTiledMxfp4, c.n, c.k, to, nullptr});
  }
  for (uint64_t i = 0; i < kRoutings; ++i) d->routings.push_back(route(100 + i, c));
  d->x = ops::random_bf16(2, c.tokens * c.k, 1.0f);
  d->out.resize(static_cast<size_t>(c.tokens * c.active * c.n));
  return d;
}

BenchCase moe_case(const ops::MoeCase& c) {
  BenchCase b;
  b.op = "moe_gemm";
  b.name = fmt::format("M={} N={} K={} E={} A={}", c.tokens, c.n, c.k, c.experts, c.active);
  double used = 0;
  for (uint64_t i = 0; i < kRoutings; ++i)
    used += static_cast<double>(route(100 + i, c).experts_used) / kRoutings;
  const int64_t slots = c.tokens * c.active;
  b.bytes = used * static_cast<double>(ops::moe_packed_bytes(tensor::WeightLayout::kTiledMxfp4, c.n, c.k)) +
            2.0 * static_cast<double>(c.tokens * c.k + slots * c.n);
  b.flops = 2.0 * static_cast<double>(slots * c.n * c.k);
  b.prepare = [c, slots](const ops::Context& context) -> std::function<void()> {
    auto d = make_moe(c);
    return [d, c, slots, &context] {
      Routing& r = d->routings[static_cast<size_t>(d->next % kRoutings)];
      const auto& experts = d->layers[static_cast<size_t>(d->next % kLayers)];
      ++d->next;
      const ops::Tensor source = tensor::view(r.source.data(), {slots});
      ops::moe_gemm(context, tensor::view(d->x.data(), {c.tokens, c.k}), &source,
                    tensor::view(r.offsets.data(), {c.experts + 1}), experts,
                    tensor::view(d->out.data(), {slots, c.n}));
    };
  };
  return b;
}

struct RouteData {
  std::vector<float> logits;
  std::vector<float> bias;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

struct CombineData {
  std::vector<float> y;
  std::vector<int32_t> place;
  std::vector<float> weights;
  std::vector<bf16> out;
};

}  // namespace

std::vector<BenchCase> moe_gemm_bench() {
  std::vector<BenchCase> cases;
  for (const ops::MoeCase& c : ops::kMoeBenchCases) cases.push_back(moe_case(c));
  return cases;
}

std::vector<BenchCase> moe_route_bench() {
  std::vector<BenchCase> cases;
  for (const ops::RouteCase& c : ops::kRouteBenchCases) {
    BenchCase b;
    b.op = "moe_route";
    b.name = fmt::format("M={} E={} A={}", c.t, c.experts, c.active);
    b.bytes = static_cast<double>(c.t * (4 * c.experts + 8 * c.active) + 4 * c.experts);
    b.flops = 30.0 * static_cast<double>(c.t * c.experts);  // one sigmoid
    b.prepare = [c](const ops::Context& context) -> std::function<void()> {
      auto d = std::make_shared<RouteData>();
      for (int64_t i = 0; i < c.t * c.experts; ++i) {
        d->logits.push_back(8 * random_uniform(1, static_cast<uint64_t>(i)) - 4);
      }
      d->bias.resize(static_cast<size_t>(c.experts));
      d->ids.resize(static_cast<size_t>(c.t * c.active));
      d->weights.resize(d->ids.size());
      return [d, c, &context] {
        ops::moe_route(context, tensor::view(d->logits.data(), {c.t, c.experts}),
                       tensor::view(d->bias.data(), {c.experts}), {c.active, true, 1.0},
                       tensor::view(d->ids.data(), {c.t, c.active}),
                       tensor::view(d->weights.data(), {c.t, c.active}));
      };
    };
    cases.push_back(b);
  }
  return cases;
}

std::vector<BenchCase> moe_combine_bench() {
  std::vector<BenchCase> cases;
  for (const ops::CombineCase& c : ops::kCombineBenchCases) {
    BenchCase b;
    b.op = "moe_combine";
    b.name = fmt::format("M={} A={} Z={}", c.t, c.active, c.width);
    b.bytes = static_cast<double>(c.t * (4 * c.active * c.width + 2 * c.width));
    b.flops = 2.0 * static_cast<double>(c.t * c.active * c.width);
    b.prepare = [c](const ops::Context& context) -> std::function<void()> {
      auto d = std::make_shared<CombineData>();
      const int64_t slots = c.t * c.active;
      d->y.assign(static_cast<size_t>(slots * c.width), 0.5f);
      for (int64_t i = 0; i < slots; ++i) d->place.push_back(static_cast<int32_t>(i * 7 % slots));
      d->weights.assign(static_cast<size_t>(slots), 0.1f);
      d->out.resize(static_cast<size_t>(c.t * c.width));
      return [d, c, slots, &context] {
        ops::moe_combine(context, tensor::view(d->y.data(), {slots, c.width}),
                         tensor::view(d->place.data(), {c.t, c.active}),
                         tensor::view(d->weights.data(), {c.t, c.active}),
                         tensor::view(d->out.data(), {c.t, c.width}));
      };
    };
    cases.push_back(b);
  }
  return cases;
}

}  // namespace perigee::bench
