#include "bench/ops/table.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/rng.h"
#include "bench/ops/bench_case.h"
#include "bench/ops/rates.h"
#include "tensor/gpu.h"

namespace perigee::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr int kWarm = 3;
constexpr size_t kRepeatsMin = 5;
constexpr int kGraphRuns = 20;
constexpr double kGraphSeconds = 0.02;

struct Measured {
  double median_us = 0;
  size_t repeats = 0;
  uint64_t digest = 0;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<BenchCase> chosen_cases(tensor::Device device, const std::string& only) {
  std::vector<BenchCase> out;
  for (const auto& make : {dense_bench, moe_bench, attention_bench, kda_bench, rows_bench, sample_bench}) {
    for (BenchCase& c : make(device)) {
      if ((c.op + " " + c.name).find(only) != std::string::npos) out.push_back(std::move(c));
    }
  }
  return out;
}

uint64_t digest_of(const ops::Context& context, const std::vector<Tensor>& outputs) {
  std::string bytes;
  for (const Tensor& t : outputs) {
    CHECK_EQ(t.row_stride, t.row_size());
    const size_t begin = bytes.size();
    bytes.resize(begin + static_cast<size_t>(t.size() * tensor::dtype_bytes(t.dtype)));
    context.mover().copy(bytes.data() + begin, t.data, bytes.size() - begin);
  }
  context.mover().wait("copying results");
  return hash_name(bytes);
}

double timed(const ops::Context& context, const std::function<void()>& run) {
  const Clock::time_point start = Clock::now();
  run();
  context.mover().wait("a benchmark");
  return seconds_since(start);
}

Measured measure(const BenchCase& c, const ops::Context& context, double seconds) {
  Operands operands(context);
  const Prepared prepared = c.prepare(operands);
  context.mover().wait("filling operands");
  Measured out;
  double once = timed(context, prepared.run);
  out.digest = digest_of(context, prepared.outputs);
  for (int i = 1; i < kWarm; ++i) once = std::min(once, timed(context, prepared.run));
  std::function<void()> work = prepared.run;
  tensor::GpuGraph graph;
  int runs = 1;
  if (context.device == tensor::Device::kCuda) {
    runs = std::clamp(static_cast<int>(kGraphSeconds / once), 1, kGraphRuns);
    graph = tensor::GpuGraph::record(context.stream, [&] {
      for (int i = 0; i < runs; ++i) prepared.run();
    });
    work = [&] { graph.launch(context.stream); };
    timed(context, work);  // the first launch loads it
  }
  std::vector<double> us;
  const Clock::time_point start = Clock::now();
  while (us.size() < kRepeatsMin || seconds_since(start) < seconds) us.push_back(timed(context, work) / runs * 1e6);
  std::sort(us.begin(), us.end());
  out.median_us = us[us.size() / 2];
  out.repeats = us.size() * static_cast<size_t>(runs);
  return out;
}

std::string method_text(const ops::Context& context, const TableOptions& options) {
  const std::string digests =
      "digests are of the first run; activations stay in caches if they fit, weights, pages and states come from memory";
  if (context.device == tensor::Device::kCuda) {
    return fmt::format(
        "after {} runs graphs of {} runs, fewer if they take over {:.0f} ms; medians of at least {} graphs and {} s, launch and "
        "wait included, divided by their runs; {}",
        kWarm, kGraphRuns, kGraphSeconds * 1e3, kRepeatsMin, options.seconds, digests);
  }
  return fmt::format("medians of at least {} runs and {} s after {} runs to warm up; {}", kRepeatsMin, options.seconds, kWarm,
                     digests);
}

Json method_json(const ops::Context& context, const TableOptions& options) {
  Json out = {{"statistic", "median"}, {"seconds_min", options.seconds}, {"repeats_min", kRepeatsMin}, {"warm_up", kWarm}};
  if (context.device == tensor::Device::kCuda) {
    out["graph_runs"] = kGraphRuns;
    out["graph_seconds_max"] = kGraphSeconds;
  }
  out["text"] = method_text(context, options);
  return out;
}

Json machine_json(const ops::Context& context, const Rates& rates) {
  Json out = {{"device", context.device == tensor::Device::kCuda ? "cuda" : "cpu"},
              {"processor", rates.processor},
              {"bytes_per_s", rates.bytes_per_s},
              {"bytes_method", rates.bytes_method},
              {"matrix_flops_per_s", rates.matrix_flops_per_s},
              {"matrix_method", rates.matrix_method}};
  for (const auto& [name, value] : rates.more) out[name] = value;
  return out;
}

// Also prints its line.
Json row(const BenchCase& c, const Measured& m, const Rates& rates) {
  const double bytes_per_s = c.bytes / m.median_us * 1e6;
  const double flops_per_s = c.flops / m.median_us * 1e6;
  const double of_bytes = 100 * bytes_per_s / rates.bytes_per_s;
  const double of_matrix = 100 * flops_per_s / rates.matrix_flops_per_s;
  const std::string digest = fmt::format("{:016x}", m.digest);
  fmt::print("{:<12} {:<36} {:>11.1f} {:>8} {:>9.2f} {:>7.1f} {:>9.1f} {:>7.1f}  {}\n", c.op, c.name, m.median_us, m.repeats,
             bytes_per_s * 1e-9, of_bytes, flops_per_s * 1e-9, of_matrix, digest);
  std::fflush(stdout);
  return {{"op", c.op},
          {"case", c.name},
          {"time_us_median", m.median_us},
          {"bytes", c.bytes},
          {"flops", c.flops},
          {"percent_of_bandwidth", of_bytes},
          {"percent_of_matrix_rate", of_matrix},
          {"digest", digest}};
}

}  // namespace

Status run_table(const ops::Context& context, const TableOptions& options) {
  const std::vector<BenchCase> cases = chosen_cases(context.device, options.only);
  if (cases.empty()) return invalid_argument("--only is '{}'; no operation and case contain it", options.only);
  const Result<Rates> rates = measure_rates(context);
  if (!rates.ok()) return rates.error();
  fmt::print("{}\n% bytes of {:.2f} GB/s: {}\n% matrix of {:.1f} GFLOP/s: {}\n", rates->processor, rates->bytes_per_s * 1e-9,
             rates->bytes_method, rates->matrix_flops_per_s * 1e-9, rates->matrix_method);
  for (const auto& [name, value] : rates->more) fmt::print("{} {:.6g}\n", name, value);
  fmt::print("{}\n\n", method_text(context, options));
  fmt::print("{:<12} {:<36} {:>11} {:>8} {:>9} {:>7} {:>9} {:>7}  {}\n", "op", "case", "median us", "runs", "GB/s", "% bytes",
             "GFLOP/s", "% matrix", "digest");
  Json report;
  report["machine"] = machine_json(context, *rates);
  report["method"] = method_json(context, options);
  report["results"] = Json::array();
  for (const BenchCase& c : cases) report["results"].push_back(row(c, measure(c, context, options.seconds), *rates));
  return options.json.empty() ? Status() : write_file(options.json, report.dump(2) + "\n");
}

}  // namespace perigee::bench
