#include "bench/cpu/machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <vector>

#include "base/check.h"
#include "base/cpu.h"
#include "base/thread_pool.h"
#include "bench/cpu/machine_loops.h"
#include "ops/context.h"
#include "tensor/arena.h"

namespace perigee::bench {
namespace {

constexpr int64_t kReadBytes = int64_t{2} << 30;
constexpr int64_t kPiece = 1 << 20;  // bytes of one parallel index
constexpr int kPasses = 7;
constexpr int64_t kVectorRounds = 20'000'000;
constexpr int64_t kTileRounds = 2'000'000;

template <class T>
void keep(T value) {
  asm volatile("" : : "g"(value) : "memory");
}

double median_seconds(const std::function<void()>& pass) {
  std::vector<double> seconds;
  pass();
  for (int i = 0; i < kPasses; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pass();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[kPasses / 2];
}

double read_rate(ThreadPool& pool, Isa isa, const uint8_t* data) {
  const double seconds = median_seconds([&] {
    pool.parallel_for(kReadBytes / kPiece, [&](int64_t begin, int64_t end) {
      ops::with_isa(isa, [&]<Isa set>() {
        keep(read_all<set>(data + begin * kPiece, (end - begin) * kPiece));
      });
    });
  });
  return static_cast<double>(kReadBytes) / seconds;
}

double flops_rate(ThreadPool& pool, int64_t flops_a_thread, const std::function<void()>& body) {
  const double seconds = median_seconds([&] {
    pool.parallel_for(pool.threads(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body();
    });
  });
  return static_cast<double>(flops_a_thread) * pool.threads() / seconds;
}

MachineRates measure(int threads) {
  MachineRates rates;
  rates.threads = threads;
  ThreadPool pool(threads);
  ThreadPool one(1);
  const ops::Context context = ops::make_context(tensor::Device::kCpu, &pool);
  {
    Result<tensor::Arena> arena = tensor::Arena::create(kReadBytes, "read bandwidth");
    CHECK(arena.ok());
    auto* const data = reinterpret_cast<uint8_t*>(arena.value().allocate(kReadBytes));
    std::memset(data, 1, kReadBytes);  // real pages
    rates.read_bytes_per_s_one_thread = read_rate(one, context.isa, data);
    rates.read_bytes_per_s =
        threads == 1 ? rates.read_bytes_per_s_one_thread : read_rate(pool, context.isa, data);
  }
  rates.vector_flops_per_s = flops_rate(pool, 2 * kMultiplyAddsARound * kVectorRounds, [&] {
    ops::with_isa(context.isa, [&]<Isa set>() { keep(multiply_adds<set>(kVectorRounds)); });
  });
  rates.matrix_flops_per_s = rates.vector_flops_per_s;
  rates.matrix_unit = context.isa == Isa::kAvx512 ? "AVX-512 FP32"
                      : context.isa == Isa::kAvx2 ? "AVX2 FP32"
                                                  : "plain FP32";
#if defined(__x86_64__)
  if (context.amx) {
    rates.matrix_flops_per_s = flops_rate(pool, 2 * kTileMultiplyAddsARound * kTileRounds,
                                          [] { tile_products(kTileRounds, false); });
    rates.matrix_fed_flops_per_s = flops_rate(pool, 2 * kTileMultiplyAddsARound * kTileRounds,
                                              [] { tile_products(kTileRounds, true); });
    rates.matrix_unit = "AMX BF16";
  }
#endif
  return rates;
}

}  // namespace

const MachineRates& machine_rates(int threads) {
  static const MachineRates rates = measure(threads);
  CHECK_EQ(rates.threads, threads);
  return rates;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace perigee::bench
