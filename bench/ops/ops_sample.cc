#include "bench/ops/bench_case.h"
#include "ops/sample/sample.h"
#include "ops/sample/sample_cases.h"
#include "ops/sample/sample_gpu.h"

namespace perigee::bench {
namespace {

using tensor::Device;
using tensor::DType;

constexpr int64_t kO = ops::kSampleBenchWidth;

int64_t workspace_bytes(Device device, int64_t rows) {
  if constexpr (ops::kCudaBuilt) {
    if (device == Device::kCuda) return ops::cuda::sample_workspace_bytes(rows, kO);
  }
  return 0;
}

void sum(const ops::Context& context, const Tensor& logits, void* workspace, const Tensor& out) {
  if constexpr (ops::kCudaBuilt) {
    if (context.device == Device::kCuda) return ops::cuda::log_sum_exp(context, logits, workspace, out);
  }
  ops::log_sum_exp(context, logits, out);
}

BenchCase sum_case(int64_t t) {
  BenchCase c;
  c.op = "sample";
  c.name = fmt::format("log_sum_exp M={} O={}", t, kO);
  c.bytes = static_cast<double>(4 * t * kO);
  c.flops = static_cast<double>(25 * t * kO);
  c.prepare = [=](Operands& on) -> Prepared {
    const Tensor logits = on.floats(1, {t, kO}, 10);
    const Tensor workspace = on.make(DType::kU8, {workspace_bytes(on.device(), t)});
    const Tensor out = on.make(DType::kF32, {t});
    return {[=, &context = on.context()] { sum(context, logits, workspace.data, out); }, {out}};
  };
  return c;
}

// What a step needs to draw: sums, then tokens with their log-probabilities. The host and a GPU leave the same records.
BenchCase draw_case(int64_t t) {
  BenchCase c;
  c.op = "sample";
  c.name = fmt::format("draw M={} O={}", t, kO);
  c.bytes = static_cast<double>(4 * t * kO);
  c.flops = static_cast<double>(85 * t * kO);
  c.prepare = [=](Operands& on) -> Prepared {
    std::vector<ops::SampleParams> params(static_cast<size_t>(t));
    std::vector<ops::DrawKey> keys;
    for (int64_t i = 0; i < t; ++i) {
      params[static_cast<size_t>(i)].seed = static_cast<uint64_t>(i);
      keys.push_back(ops::draw_key(params[static_cast<size_t>(i)]));
    }
    const Tensor logits = on.floats(1, {t, kO}, 10);
    const Tensor workspace = on.make(DType::kU8, {workspace_bytes(on.device(), t)});
    const Tensor lse = on.make(DType::kF32, {t});
    const Tensor out = on.make(DType::kU8, {t * static_cast<int64_t>(sizeof(ops::Drawn))});
    auto* const drawn = static_cast<ops::Drawn*>(out.data);
    const auto* const there = reinterpret_cast<const ops::DrawKey*>(on.copies(std::as_bytes(std::span(keys)), 1).at(0));
    const ops::Context& context = on.context();
    if constexpr (ops::kCudaBuilt) {
      if (on.device() == Device::kCuda) {
        const auto run = [=, &context] {
          ops::cuda::log_sum_exp(context, logits, workspace.data, lse);
          ops::cuda::draw(context, logits, lse, there, workspace.data, drawn);
        };
        return {run, {out}};
      }
    }
    const auto run = [=, &context, sampled = std::vector<ops::Sampled>(params.size())]() mutable {
      ops::sample(context, logits, params, sampled);
      for (size_t i = 0; i < sampled.size(); ++i) {
        const ops::Sampled& s = sampled[i];
        drawn[i] = {s.id, static_cast<float>(s.logprob), static_cast<float>(s.processed_logprob)};
      }
    };
    return {run, {out}};
  };
  return c;
}

}  // namespace

std::vector<BenchCase> sample_bench(Device) {
  std::vector<BenchCase> cases;
  for (const int64_t t : ops::kSampleBenchRows) cases.push_back(sum_case(t));
  for (const int64_t t : ops::kSampleBenchRows) cases.push_back(draw_case(t));
  return cases;
}

}  // namespace perigee::bench
