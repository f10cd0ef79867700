// Times public kernels beside ours, on the same tensors, in one process, taking turns.
//   perigee_bench_peers PEER.so [PEER.so ...] [--only TEXT] [--rounds N] [--csv FILE]
// PEER.so is an adapter of the interface in peer.h, built outside of this tree (README.md).
//
// Method. Each side's run is recorded 20 times into a graph, each run with other copies of the weights; the two graphs are launched in
// turn, N rounds, each waited for; times are medians over the rounds divided by 20. The outputs of both are compared first: their
// relative difference is printed, and a side that is wrong is not timed.
#include <dlfcn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/file.h"
#include "bench/ops/operands.h"
#include "bench/peers/peer.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_cases.h"
#include "tensor/gpu.h"

namespace perigee::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRuns = 20;
constexpr double kDifferenceMax = 0.01;  // of two results rounded to BF16

struct Peer {
  decltype(&perigee_peer_name) name;
  decltype(&perigee_peer_open) open;
  decltype(&perigee_peer_run) run;
  decltype(&perigee_peer_close) close;
};

// One problem for both sides.
struct Match {
  std::string op, name;
  std::vector<int64_t> sizes;
  std::vector<const void*> inputs;
  std::function<void(int64_t turn)> ours;
  Tensor our_output, peer_output;  // BF16
};

Match gemm_match(Operands& on, int64_t t, int64_t n, int64_t k) {
  const std::vector<bf16> rows = random_halves(1, n * k, 0.1f);
  const tensor::WeightLayout layout = dense_layout(on.device());
  std::vector<std::byte> packed(static_cast<size_t>(ops::gemm_packed_bytes(layout, n, k)));
  ops::gemm_pack_rows(layout, rows.data(), n, k, k, packed.data(), n, 0);
  const Copies mine = on.copies(packed), plain = on.copies(std::as_bytes(std::span(rows)));
  const Tensor x = on.halves(2, {t, k});
  Match m;
  m.op = "gemm";
  m.name = fmt::format("M={} N={} K={}", t, n, k);
  m.sizes = {t, n, k, plain.count(), plain.distance()};
  m.inputs = {x.data, plain.at(0)};
  m.our_output = on.make(tensor::DType::kBF16, {t, n});
  m.peer_output = on.make(tensor::DType::kBF16, {t, n});
  m.ours = [=, &context = on.context(), out = m.our_output](int64_t turn) {
    ops::gemm(context, x, {layout, n, k, mine.at(turn % mine.count()), nullptr}, out);
  };
  return m;
}

std::vector<float> values(const ops::Context& context, const Tensor& t) {
  std::vector<bf16> half(static_cast<size_t>(t.size()));
  context.mover().copy(half.data(), t.data, half.size() * sizeof(bf16));
  context.mover().wait("reading results");
  std::vector<float> out;
  for (const bf16 h : half) out.push_back(to_float(h));
  return out;
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double d = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    d += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(a[i]) * a[i];
  }
  return std::sqrt(d / norm);
}

tensor::GpuGraph record(const ops::Context& context, const std::function<void(int64_t)>& run) {
  for (int64_t i = 0; i < 3; ++i) run(i);  // loads kernels, which recording must not do
  context.mover().wait("warming up");
  return tensor::GpuGraph::record(context.stream, [&] {
    for (int64_t i = 0; i < kRuns; ++i) run(i);
  });
}

double median_us(std::vector<double>& seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2] * 1e6 / kRuns;
}

std::string compare(const Peer& peer, const ops::Context& context, const Match& m, int rounds) {
  void* outputs[] = {m.peer_output.data};
  const PerigeePeerProblem problem = {m.op.c_str(), m.sizes.data(), m.inputs.data(), outputs, context.stream};
  void* state = nullptr;
  if (const char* refusal = peer.open(&problem, &state)) return fmt::format("{},{},{},,,,{}\n", peer.name(), m.op, m.name, refusal);
  m.ours(0);
  peer.run(state, 0);
  const double apart = difference(values(context, m.our_output), values(context, m.peer_output));
  std::string line = fmt::format("{},{},{},,,,results differ by {:.3g}\n", peer.name(), m.op, m.name, apart);
  if (apart < kDifferenceMax) {
    const tensor::GpuGraph graphs[2] = {record(context, m.ours), record(context, [&](int64_t turn) { peer.run(state, turn); })};
    std::vector<double> times[2];
    for (int round = -1; round < rounds; ++round) {
      for (int side = 0; side < 2; ++side) {
        const Clock::time_point start = Clock::now();
        graphs[side].launch(context.stream);
        context.mover().wait("a benchmark");
        if (round >= 0) times[side].push_back(std::chrono::duration<double>(Clock::now() - start).count());
      }
    }
    const double ours = median_us(times[0]), theirs = median_us(times[1]);
    line = fmt::format("{},{},{},{:.2f},{:.2f},{:.3f},{:.3g}\n", peer.name(), m.op, m.name, ours, theirs, ours / theirs, apart);
  }
  peer.close(state);
  return line;
}

Result<Peer> load_peer(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return io_error("{}", dlerror());
  const auto find = [&](const char* name) { return dlsym(library, name); };
  const Peer peer = {reinterpret_cast<decltype(Peer::name)>(find("perigee_peer_name")),
                     reinterpret_cast<decltype(Peer::open)>(find("perigee_peer_open")),
                     reinterpret_cast<decltype(Peer::run)>(find("perigee_peer_run")),
                     reinterpret_cast<decltype(Peer::close)>(find("perigee_peer_close"))};
  if (peer.name == nullptr || peer.open == nullptr || peer.run == nullptr || peer.close == nullptr) {
    return invalid_argument("{} lacks a function of bench/peers/peer.h", path);
  }
  return peer;
}

struct Flags {
  std::vector<std::string> paths;
  std::string only, csv;
  int rounds = 21;
};

Status run(const Flags& flags) {
  const Result<tensor::GpuInfo> gpu = tensor::open_gpu(0);
  if (!gpu.ok()) return gpu.error();
  std::vector<Peer> peers;
  for (const std::string& path : flags.paths) {
    const Result<Peer> peer = load_peer(path);
    if (!peer.ok()) return peer.error();
    peers.push_back(*peer);
  }
  ThreadPool pool(cpu_threads());
  Result<tensor::GpuStream> stream = tensor::GpuStream::create();
  if (!stream.ok()) return stream.error();
  ops::Context context = ops::make_context(tensor::Device::kCuda, &pool);
  context.stream = stream->handle();
  std::string table = "peer,op,case,ours_us,peer_us,ours_over_peer,difference\n";
  fmt::print("{}: medians of {} turns of graphs of {} runs, weights from memory\n{}", gpu->name, flags.rounds, kRuns, table);
  for (const auto& [n, k] : ops::kGemmBenchShapes) {
    for (const int64_t t : ops::kGemmBenchRows) {
      if (fmt::format("gemm M={} N={} K={}", t, n, k).find(flags.only) == std::string::npos) continue;
      Operands on(context);
      const Match match = gemm_match(on, t, n, k);
      for (const Peer& peer : peers) {
        const std::string line = compare(peer, context, match, flags.rounds);
        fmt::print("{}", line);
        std::fflush(stdout);
        table += line;
      }
    }
  }
  return flags.csv.empty() ? Status() : write_file(flags.csv, table);
}

}  // namespace
}  // namespace perigee::bench

int main(int argc, char** argv) {
  perigee::bench::Flags flags;
  CLI::App app("Times public kernels beside ours on the same tensors");
  app.add_option("PEER", flags.paths, "adapters: shared libraries with the interface of bench/peers/peer.h")->required();
  app.add_option("--only", flags.only, "run the cases whose \"op case\" contains this text");
  app.add_option("--rounds", flags.rounds, "turns of each side")->check(CLI::Range(1, 10000));
  app.add_option("--csv", flags.csv, "also write the table to this file");
  CLI11_PARSE(app, argc, argv);
  const perigee::Status done = perigee::bench::run(flags);
  if (done.ok()) return 0;
  std::fprintf(stderr, "perigee_bench_peers: %s\n", done.error().message.c_str());
  return 2;
}
