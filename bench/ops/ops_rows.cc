#include "base/rng.h"
#include "bench/ops/bench_case.h"
#include "ops/act/act.h"
#include "ops/act/act_cases.h"
#include "ops/attn_res/attn_res.h"
#include "ops/attn_res/attn_res_cases.h"
#include "ops/copy/copy.h"
#include "ops/copy/copy_cases.h"
#include "ops/embed/embed.h"
#include "ops/embed/embed_cases.h"
#include "ops/norm/norm.h"
#include "ops/norm/norm_cases.h"

namespace perigee::bench {
namespace {

using tensor::Device;
using tensor::DType;

constexpr double kEps = 1e-6;

// `bytes` and `flops` of one element of [t, n].
BenchCase row_case(const std::string& op, const std::string& name, int64_t t, int64_t n, int64_t bytes, int64_t flops) {
  BenchCase c;
  c.op = op;
  c.name = fmt::format("{}M={} N={}", name.empty() ? "" : name + " ", t, n);
  c.bytes = static_cast<double>(bytes * t * n);
  c.flops = static_cast<double>(flops * t * n);
  return c;
}

BenchCase rms_norm_case(int64_t t) {
  const int64_t n = ops::kNormBenchWidth;
  BenchCase c = row_case("norm", "rms", t, n, 4, 4);
  c.prepare = [=](Operands& on) -> Prepared {
    const Tensor x = on.halves(1, {t, n});
    const Tensor weight = on.halves(2, {n});
    const Tensor out = on.make(DType::kBF16, {t, n});
    return {[=, &context = on.context()] { ops::rms_norm(context, x, weight, kEps, out); }, {out}};
  };
  return c;
}

BenchCase layer_norm_case(int64_t t) {
  const int64_t n = ops::kLayerNormBenchWidth;
  BenchCase c = row_case("norm", "layer", t, n, 4, 6);
  c.prepare = [=](Operands& on) -> Prepared {
    const Tensor x = on.halves(1, {t, n});
    const Tensor weight = on.floats(2, {n});
    const Tensor bias = on.floats(3, {n});
    const Tensor out = on.make(DType::kBF16, {t, n});
    return {[=, &context = on.context()] { ops::layer_norm(context, x, weight, bias, kEps, out); }, {out}};
  };
  return c;
}

BenchCase gated_norm_case(int64_t t) {
  const int64_t heads = ops::kGatedNormBenchHeads;
  const int64_t width = ops::kGatedNormBenchWidth;
  BenchCase c = row_case("norm", "gated", t, heads * width, 8, 30);  // reals in, a sigmoid
  c.prepare = [=](Operands& on) -> Prepared {
    const Tensor x = on.floats(1, {t, heads, width});
    const Tensor weight = on.floats(2, {width});
    const Tensor gate = on.halves(3, {t, heads * width});
    const Tensor out = on.make(DType::kBF16, {t, heads * width});
    return {[=, &context = on.context()] { ops::gated_rms_norm(context, x, weight, gate, kEps, out); }, {out}};
  };
  return c;
}

// Gate and up side by side, as one product leaves them; real on a GPU.
BenchCase glu_case(Device device, int64_t t) {
  const int64_t n = ops::kGluBenchWidth;
  const bool real = device == Device::kCuda;
  BenchCase c = row_case("act", "glu situ", t, n, real ? 10 : 6, 60);
  c.prepare = [=](Operands& on) -> Prepared {
    const Tensor hidden = real ? on.floats(1, {t, 2 * n}, 4) : on.halves(1, {t, 2 * n}, 4);
    const Tensor out = on.make(DType::kBF16, {t, n});
    const auto run = [=, &context = on.context()] {
      ops::glu(context, hidden.columns(0, n), hidden.columns(n, n), {ops::GluKind::kSitu, 7.0, 7.0}, out);
    };
    return {run, {out}};
  };
  return c;
}

using Binary = void (*)(const ops::Context&, const Tensor&, const Tensor&, const Tensor&);

BenchCase binary_case(const std::string& name, int64_t t, int64_t n, int64_t flops, Binary operation) {
  BenchCase c = row_case("act", name, t, n, 6, flops);
  c.prepare = [=](Operands& on) -> Prepared {
    const Tensor a = on.halves(1, {t, n});
    const Tensor b = on.halves(2, {t, n});
    const Tensor out = on.make(DType::kBF16, {t, n});
    return {[=, &context = on.context()] { operation(context, a, b, out); }, {out}};
  };
  return c;
}

BenchCase attn_res_case(int64_t t) {
  const auto [n, width] = ops::kAttnResBenchShape;
  BenchCase c = row_case("attn_res", fmt::format("rows={}", n), t, width, 2 * (n + 1), 6 * n);
  c.prepare = [=, n = n, width = width](Operands& on) -> Prepared {
    std::vector<Tensor> rows;
    for (int64_t i = 0; i < n; ++i) rows.push_back(on.halves(static_cast<uint64_t>(i), {t, width}));
    const Tensor query = on.floats(99, {width}, 0.1f);
    const Tensor out = on.make(DType::kBF16, {t, width});
    return {[=, &context = on.context()] { ops::attn_res_mix(context, rows, query, kEps, out); }, {out}};
  };
  return c;
}

// Other ids in every run.
BenchCase embed_case(int64_t t) {
  constexpr uint64_t kLists = 16;
  const int64_t width = ops::kEmbedBenchWidth;
  BenchCase c = row_case("embed", "", t, width, 4, 0);
  c.prepare = [=](Operands& on) -> Prepared {
    std::vector<Tensor> lists;
    for (uint64_t l = 0; l < kLists; ++l) {
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < t; ++i) {
        const uint64_t draw = random_bits(l, static_cast<uint64_t>(i));
        ids.push_back(static_cast<int32_t>(draw % static_cast<uint64_t>(ops::kEmbedBenchTable)));
      }
      lists.push_back(on.put(ids, {t}));
    }
    const Tensor table = on.halves(1, {ops::kEmbedBenchTable, width});
    const Tensor out = on.make(DType::kBF16, {t, width});
    const auto run = [=, &context = on.context(), turn = size_t{0}]() mutable {
      ops::embed(context, lists[turn++ % kLists], table, out);
    };
    return {run, {out}};
  };
  return c;
}

BenchCase copy_case(int64_t t) {
  const int64_t n = ops::kCopyBenchWidth;
  BenchCase c = row_case("copy", "", t, n, 4, 0);
  c.prepare = [=](Operands& on) -> Prepared {
    const Tensor x = on.halves(1, {t, n});
    const Tensor out = on.make(DType::kBF16, {t, n});
    const auto run = [=, &context = on.context()] {
      const ops::CopyItem item = {x, out};
      ops::copy(context, {&item, 1});
    };
    return {run, {out}};
  };
  return c;
}

}  // namespace

std::vector<BenchCase> rows_bench(Device device) {
  std::vector<BenchCase> cases;
  for (const auto& make : {rms_norm_case, layer_norm_case, gated_norm_case}) {
    for (const int64_t t : ops::kNormBenchRows) cases.push_back(make(t));
  }
  for (const int64_t t : ops::kActBenchRows) {
    cases.push_back(glu_case(device, t));
    cases.push_back(binary_case("sigmoid_gate", t, ops::kGateBenchWidth, 30, ops::sigmoid_gate));
    cases.push_back(binary_case("add", t, ops::kAddBenchWidth, 1, ops::add));
  }
  for (const int64_t t : ops::kAttnResBenchTokens) cases.push_back(attn_res_case(t));
  for (const int64_t t : ops::kEmbedBenchRows) cases.push_back(embed_case(t));
  for (const int64_t t : ops::kCopyBenchRows) cases.push_back(copy_case(t));
  return cases;
}

}  // namespace perigee::bench
