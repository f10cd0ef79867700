#include "bench/ops/bench_case.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_cases.h"

namespace perigee::bench {
namespace {

BenchCase gemm_case(tensor::Device device, int64_t t, int64_t n, int64_t k) {
  BenchCase c;
  c.op = "gemm";
  c.name = fmt::format("M={} N={} K={}", t, n, k);
  c.bytes = static_cast<double>(ops::gemm_packed_bytes(dense_layout(device), n, k) + 2 * t * (k + n));
  c.flops = 2.0 * static_cast<double>(t * n * k);
  c.prepare = [=](Operands& on) -> Prepared {
    const Tensor x = on.halves(2, {t, k});
    const Tensor out = on.make(tensor::DType::kBF16, {t, n});
    const auto run = [&context = on.context(), weights = on.dense(n, k), x, out, n, k]() mutable {
      ops::gemm(context, x, {dense_layout(context.device), n, k, weights.next(), nullptr}, out);
    };
    return {run, {out}};
  };
  return c;
}

}  // namespace

std::vector<BenchCase> dense_bench(tensor::Device device) {
  std::vector<BenchCase> cases;
  for (const auto& [n, k] : ops::kGemmBenchShapes) {
    for (const int64_t t : ops::kGemmBenchRows) cases.push_back(gemm_case(device, t, n, k));
  }
  return cases;
}

}  // namespace perigee::bench
