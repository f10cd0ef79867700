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
#include "ops/mla/mla.h"
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
  double scale = 1;
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

// Dense attention of one new token a sequence over BF16 latents, a block of the cache a page.
Match mla_match(Operands& on, int64_t batch, int64_t heads, int64_t context) {
  constexpr int64_t kC = 512, kR = 64, kRecord = (kC + kR) * 2, kPageBytes = tensor::kPageTokens * kRecord;
  const int64_t pages = context / tensor::kPageTokens;
  const std::vector<bf16> records = random_halves(1, batch * context * (kC + kR));
  const Copies pool = on.copies(std::as_bytes(std::span(records)));
  std::vector<int32_t> table;
  for (int64_t i = 0; i < batch * pages; ++i) table.push_back(static_cast<int32_t>(batch * pages - 1 - i));
  std::vector<PartPlan> plans;
  for (int64_t b = 0; b < batch; ++b) {
    plans.push_back({b, 1, context - 1, {table.begin() + b * pages, table.begin() + (b + 1) * pages}, {}, 0});
  }
  const tensor::Parts parts = on.parts(plans, batch);
  const Tensor q = on.halves(2, {batch, heads, kC + kR});
  const auto dims = ops::mla_workspace(on.device(), batch, heads, kC, context, int64_t{1} << 28);
  const Tensor workspace = dims[0] > 0 ? on.make(tensor::DType::kF32, {dims[0], dims[1], dims[2], dims[3]}) : Tensor();
  const Tensor lse = on.make(tensor::DType::kF32, {batch, heads});
  Match m;
  m.op = "mla_dense";
  m.name = fmt::format("B={} H={} S={}", batch, heads, context);
  m.scale = 1 / std::sqrt(192.0);  // of the 128 + 64 columns before absorption
  m.sizes = {batch, heads, context, pool.count(), pool.distance()};
  m.inputs = {q.data, pool.at(0), on.put(table, {batch * pages}).data,
              on.put(std::vector<int32_t>(static_cast<size_t>(batch), static_cast<int32_t>(context)), {batch}).data};
  m.our_output = on.make(tensor::DType::kBF16, {batch, heads, kC});
  m.peer_output = on.make(tensor::DType::kBF16, {batch, heads, kC});
  m.ours = [=, &on, scale = m.scale, out = m.our_output](int64_t turn) {
    const tensor::PagePlace place = {pool.at(turn % pool.count()), kPageBytes, tensor::kPageTokens, kRecord};
    ops::mla(on.context(), q, LatentFormat::kBf16, kC, scale, parts, place, nullptr, workspace, out, lse);
  };
  return m;
}

// What the two sides meet in.
struct Meeting {
  std::string name;
  std::function<Match(Operands&)> prepare;
};

std::vector<Meeting> meetings() {
  std::vector<Meeting> out;
  for (const auto& [n, k] : ops::kGemmBenchShapes) {
    for (const int64_t t : ops::kGemmBenchRows) {
      out.push_back({fmt::format("gemm M={} N={} K={}", t, n, k), [=](Operands& on) { return gemm_match(on, t, n, k); }});
    }
  }
  for (const auto& [batch, context] : {std::pair<int64_t, int64_t>{1, 8192}, {8, 8192}, {64, 8192}, {1, 131072}}) {
    out.push_back({fmt::format("mla_dense B={} S={}", batch, context), [=](Operands& on) { return mla_match(on, batch, 12, context); }});
  }
  return out;
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
  const PerigeePeerProblem problem = {m.op.c_str(), m.sizes.data(), m.inputs.data(), outputs, context.stream, m.scale};
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
  for (const Meeting& meeting : meetings()) {
    if (meeting.name.find(flags.only) == std::string::npos) continue;
    Operands on(context);
    const Match match = meeting.prepare(on);
    for (const Peer& peer : peers) {
      const std::string line = compare(peer, context, match, flags.rounds);
      fmt::print("{}", line);
      std::fflush(stdout);
      table += line;
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
