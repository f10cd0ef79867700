// Speed of the operations against the machine's own measured rates.
//
//   perigee_bench_ops [--threads N] [--only TEXT] [--seconds S] [--json FILE] [--no-amx]
//
// Method. The machine's read bandwidth and matrix rate are measured first (machine.h). Every case runs three times to warm up, then
// for at least S seconds and five times; its time is the median. Weights are walked over in memory larger than the caches.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "base/file.h"
#include "bench/cpu/bench_case.h"
#include "bench/cpu/machine.h"

namespace perigee::bench {
namespace {

struct Options {
  int threads = cpu_threads();
  std::string only;
  double seconds = 0.5;
  std::string json;
  bool no_amx = false;
};

struct Timing {
  double median_us = 0;
  double best_us = 0;
  size_t repeats = 0;
};

Timing time_case(const BenchCase& c, const ops::Context& context, double seconds) {
  using Clock = std::chrono::steady_clock;
  const std::function<void()> run = c.prepare(context);
  for (int i = 0; i < 3; ++i) run();
  std::vector<double> us;
  const Clock::time_point start = Clock::now();
  Clock::time_point before = start;
  while (us.size() < 5 || before - start < std::chrono::duration<double>(seconds)) {
    before = Clock::now();
    run();
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - before).count());
  }
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us[0], us.size()};
}

nlohmann::json run_all(const Options& options, const ops::Context& context,
                       const MachineRates& machine) {
  nlohmann::json results = nlohmann::json::array();
  std::printf("%-12s %-32s %12s %8s %9s %7s %9s %7s\n", "op", "case", "median us", "repeats",
              "GB/s", "% read", "GFLOP/s", "% unit");
  for (const auto& make : {gemm_bench, moe_gemm_bench, moe_route_bench, moe_combine_bench,
                           attention_bench, kda_bench}) {
    for (const BenchCase& c : make()) {
      if ((c.op + " " + c.name).find(options.only) == std::string::npos) continue;
      const Timing t = time_case(c, context, options.seconds);
      const double bytes_per_s = c.bytes / t.median_us * 1e6;
      const double flops_per_s = c.flops / t.median_us * 1e6;
      const double of_read = 100 * bytes_per_s / machine.read_bytes_per_s;
      const double of_unit = 100 * flops_per_s / machine.matrix_flops_per_s;
      std::printf("%-12s %-32s %11.1f %11.1f %8zu %8.2f %7.1f %9.1f %7.1f\n", c.op.c_str(),
                  c.name.c_str(), t.median_us, t.best_us, t.repeats, bytes_per_s * 1e-9, of_read,
                  flops_per_s * 1e-9, of_unit);
      std::fflush(stdout);
      results.push_back({{"op", c.op},
                         {"case", c.name},
                         {"time_us_median", t.median_us},
                         {"time_us_best", t.best_us},
                         {"repeats", t.repeats},
                         {"bytes", c.bytes},
                         {"flops", c.flops},
                         {"percent_of_bandwidth", of_read},
                         {"percent_of_matrix_rate", of_unit}});
    }
  }
  return results;
}

int run(const Options& options) {
  const MachineRates& machine = machine_rates(options.threads);
  ThreadPool pool(options.threads);
  ops::Context context = ops::make_context(tensor::Device::kCpu, &pool);
  if (options.no_amx) context.amx = false;
  std::printf("%s, %d threads\n", processor_name().c_str(), options.threads);
  std::printf(
      "read 2 GiB: %.2f GB/s with one thread, %.2f GB/s with all; FP32 vectors %.1f GFLOP/s; %s "
      "%.1f GFLOP/s\n",
      machine.read_bytes_per_s_one_thread * 1e-9, machine.read_bytes_per_s * 1e-9,
      machine.vector_flops_per_s * 1e-9, machine.matrix_unit, machine.matrix_flops_per_s * 1e-9);
  if (machine.matrix_fed_flops_per_s > 0)
    std::printf("%s fed from L1: %.1f GFLOP/s\n", machine.matrix_unit, machine.matrix_fed_flops_per_s * 1e-9);
  std::printf(
      "medians of at least 5 runs and %.1f s after 3 runs to warm up; weights come from "
      "memory%s\n\n",
      options.seconds, options.no_amx ? "; products without AMX" : "");
  nlohmann::json report;
  report["machine"] = {{"processor", processor_name()},
                       {"threads", options.threads},
                       {"read_bytes_per_s", machine.read_bytes_per_s},
                       {"read_bytes_per_s_one_thread", machine.read_bytes_per_s_one_thread},
                       {"vector_flops_per_s", machine.vector_flops_per_s},
                       {"matrix_flops_per_s", machine.matrix_flops_per_s},
                       {"matrix_fed_flops_per_s", machine.matrix_fed_flops_per_s},
                       {"matrix_unit", machine.matrix_unit}};
  report["method"] = {{"seconds_min", options.seconds},
                      {"repeats_min", 5},
                      {"warm_up", 3},
                      {"statistic", "median"}};
  report["results"] = run_all(options, context, machine);
  if (options.json.empty()) return 0;
  const Status written = write_file(options.json, report.dump(2) + "\n");
  if (written.ok()) return 0;
  std::fprintf(stderr, "perigee_bench_ops: %s\n", written.error().message.c_str());
  return 1;
}

}  // namespace
}  // namespace perigee::bench

int main(int argc, char** argv) {
  perigee::bench::Options options;
  CLI::App app("Speed of the operations against the machine's measured rates");
  app.add_option("--threads", options.threads, "threads to use")->check(CLI::Range(1, 1024));
  app.add_option("--only", options.only, "run the cases whose \"op case\" contains this text");
  app.add_option("--seconds", options.seconds, "least time of a case")
      ->check(CLI::Range(0.0, 600.0));
  app.add_option("--json", options.json, "file for the numbers");
  app.add_flag("--no-amx", options.no_amx,
               "multiply with vectors even where the processor has matrix tiles");
  CLI11_PARSE(app, argc, argv);
  return perigee::bench::run(options);
}
