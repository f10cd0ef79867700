#include "bench/ops/rates.h"

#include <algorithm>
#include <chrono>

#include "bench/cpu/machine.h"
#include "bench/ops/matrix_rate.h"
#include "tensor/arena.h"
#include "tensor/gpu.h"

namespace perigee::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCopyBytes = size_t{1} << 30;
constexpr int64_t kMatrixRounds = 1 << 16;
constexpr int kPasses = 7;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Rates cpu_rates(int threads) {
  const MachineRates& m = machine_rates(threads);
  Rates out;
  out.processor = processor_name();
  out.bytes_per_s = m.read_bytes_per_s;
  out.bytes_method = "reading 2 GiB with all threads";
  out.matrix_flops_per_s = m.matrix_flops_per_s;
  out.matrix_method = fmt::format("{} on registers, all threads", m.matrix_unit);
  out.more = {{"threads", threads},
              {"read_bytes_per_s_one_thread", m.read_bytes_per_s_one_thread},
              {"vector_flops_per_s", m.vector_flops_per_s},
              {"matrix_fed_flops_per_s", m.matrix_fed_flops_per_s}};
  return out;
}

double matrix_flops_per_s(const ops::Context& context, int multiprocessors, float* sink) {
  std::vector<double> rates;
  if constexpr (ops::kCudaBuilt) {
    for (int i = 0; i <= kPasses; ++i) {
      const Clock::time_point start = Clock::now();
      const double flops = cuda::start_matrix_loop(context, multiprocessors, kMatrixRounds, sink);
      context.mover().wait("measuring matrix products");
      if (i > 0) rates.push_back(flops / seconds_since(start));  // the first one loads the kernel
    }
  }
  CHECK(!rates.empty());
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

Result<Rates> gpu_rates(const ops::Context& context) {
  const Result<tensor::GpuInfo> gpu = tensor::open_gpu(0);
  if (!gpu.ok()) return gpu.error();
  Result<tensor::Arena> sink = tensor::Arena::create(sizeof(float), "measuring matrix products", context.device);
  if (!sink.ok()) return sink.error();
  Rates out;
  out.processor = gpu->name;
  out.bytes_per_s = copy_bytes_per_s(context);
  if (out.bytes_per_s == 0) return resource_exhausted("measuring copies needs 2 GiB of the GPU's memory, which are not free");
  out.bytes_method = "a copy of 1 GiB inside the GPU, read and written";
  auto* const number = reinterpret_cast<float*>(sink->allocate(sizeof(float)));
  out.matrix_flops_per_s = matrix_flops_per_s(context, gpu->multiprocessors, number);
  out.matrix_method = "mma.sync m16n8k16 BF16 on registers; wgmma may do more";
  out.more = {{"multiprocessors", gpu->multiprocessors}};
  return out;
}

}  // namespace

double copy_bytes_per_s(const ops::Context& context) {
  const tensor::Mover mover = context.mover();
  Result<tensor::Arena> arena = tensor::Arena::create(2 * kCopyBytes, "measuring copies", context.device);
  if (!arena.ok()) return 0;
  std::byte* const from = arena->allocate(kCopyBytes);
  std::byte* const to = arena->allocate(kCopyBytes);
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    const Clock::time_point start = Clock::now();
    mover.copy(to, from, kCopyBytes);
    mover.wait("measuring copies");
    if (i > 0) best = std::max(best, 2.0 * static_cast<double>(kCopyBytes) / seconds_since(start));
  }
  return best;
}

Result<Rates> measure_rates(const ops::Context& context) {
  if (context.device == tensor::Device::kCuda) return gpu_rates(context);
  return cpu_rates(context.pool->threads());
}

}  // namespace perigee::bench
