#include <cstring>
#include <memory>

#include "bench/cpu/bench_case.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_cases.h"
#include "tensor/arena.h"

namespace perigee::bench {
namespace {

constexpr int64_t kColdBytes = int64_t{1} << 30;  // weights to walk over: more than any cache

struct GemmData {
  tensor::Arena arena;  // huge pages, as the engine's weights
  std::byte* weights = nullptr;
  int64_t copies = 1;
  int64_t next = 0;
  std::vector<bf16> x;
  std::vector<bf16> out;
};

BenchCase gemm_case(int64_t t, int64_t n, int64_t k) {
  BenchCase c;
  c.op = "gemm";
  c.name = fmt::format("M={} N={} K={}", t, n, k);
  c.bytes = static_cast<double>(ops::gemm_packed_bytes(tensor::WeightLayout::kTiledBf16, n, k) + 2 * t * (k + n));
  c.flops = 2.0 * static_cast<double>(t * n * k);
  c.prepare = [=](const ops::Context& context) -> std::function<void()> {
    auto d = std::make_shared<GemmData>();
    const int64_t bytes = ops::gemm_packed_bytes(tensor::WeightLayout::kTiledBf16, n, k);
    d->copies = (kColdBytes + bytes - 1) / bytes;
    const auto all = static_cast<size_t>(bytes * d->copies);
    Result<tensor::Arena> arena = tensor::Arena::create(all, "weights of the benchmark");
    CHECK(arena.ok());
    d->arena = std::move(arena.value());
    d->weights = d->arena.allocate(all);
    const std::vector<bf16> rows = ops::random_bf16(1, n * k, 0.1f);
    ops::gemm_pack_rows(tensor::WeightLayout::kTiledBf16, rows.data(), n, k, k, d->weights, n, 0);
    for (int64_t i = 1; i < d->copies; ++i) {
      std::memcpy(d->weights + i * bytes, d->weights, static_cast<size_t>(bytes));
    }
    d->x = ops::random_bf16(2, t * k, 1.0f);
    d->out.resize(static_cast<size_t>(t * n));
    return [=, &context] {
      const std::byte* const data = d->weights + d->next * bytes;
      d->next = (d->next + 1) % d->copies;
      ops::gemm(context, tensor::view(d->x.data(), {t, k}),
                {tensor::WeightLayout::kTiledBf16, n, k, data, nullptr},
                tensor::view(d->out.data(), {t, n}));
    };
  };
  return c;
}

}  // namespace

std::vector<BenchCase> gemm_bench() {
  std::vector<BenchCase> cases;
  for (const auto& [n, k] : ops::kGemmBenchShapes) {
    for (const int64_t t : ops::kGemmBenchRows) cases.push_back(gemm_case(t, n, k));
  }
  return cases;
}

}  // namespace perigee::bench
