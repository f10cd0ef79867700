// The whole server under load over HTTP, with a model so small that the server itself is what is measured.
//
//   perigee_bench_serve [--streams N] [--tokens N] [--rounds N] [--connections N] [--repeats N] [--engine-threads N]
//                       [--json FILE]
//
// Method. The model has two layers of width 64 with made-up weights, and the demo model's tokenizer. The server runs as
// `perigee serve` wires it, in a process of its own; the client is this process, one thread with epoll, which reads every
// stream down to its last byte: HTTP framing, each chunk's JSON, the text, one finish reason, the usage's token count, [DONE],
// nothing after it.
//   Streams      all requests are sent at once, half of them to /v1/chat/completions and half to /v1/completions, on
//                connections that are kept from round to round. A stream's text must be the same in every round. "At once"
//                counts streams between their first and last text; the server holds all of them open from the start.
//   Overhead     processor time of the server's process for 256 streams over HTTP, less that of the same requests given to
//                the engine's service directly in the same process. Requests wait in the engine until all have come, so both
//                runs have the same steps. Divided by the tokens, and by the chunks with text (some tokens of a random model
//                have no text of their own): the second is larger, and the aim is held against it. Pairs of runs, in
//                alternating order. Beside it, less noisy: the time of the threads that are not the engine's (it leaves out
//                what the engine's thread does to hand a token over, and that it finds its caches colder).
//   Connections  each idle connection has asked for /ping; the 256 streams run while all are held, then each asks again.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/file.h"
#include "base/rng.h"
#include "bench/cpu/machine.h"
#include "bench/cpu/serve_load.h"
#include "bench/cpu/serve_process.h"

namespace perigee::bench {
namespace {

using nlohmann::json;

constexpr size_t kOverheadStreams = 256;
constexpr double kOverheadAim_us = 30;
constexpr double kFlatShare = 0.02;             // growth of the memory after the second round that still counts as flat
constexpr int64_t kFlatBytes = int64_t{1} << 20;  // and in any case: what an allocator does on its own
constexpr double kSilenceMax_s = 30;
constexpr double kEngineShare = 0.05;  // a thread with so much of the engine's time is the engine's
constexpr int64_t kPromptTokens = 16;
constexpr int64_t kChatPromptMax = 160;  // a short question within the template
constexpr int32_t kWords = 1792;  // ids below are text
constexpr size_t kClientFiles = 64;  // of the client, that are no connections
constexpr size_t kServerFiles = 256;  // as serve::Server counts them
constexpr std::chrono::milliseconds kSettle{100};

struct Flags {
  size_t streams = 2000;
  int64_t tokens = 64;
  int rounds = 5;
  size_t connections = 10'000;
  int repeats = 5;
  int engine_threads = 1;
  std::string json_file;
};

enum class Api { kCompletions, kChat, kBoth };

// The demo model's folder with another shape and no weights.
class ModelFolder {
 public:
  ModelFolder() : path_(std::filesystem::temp_directory_path() / fmt::format("perigee_bench_serve_{}", ::getpid())) {
    const std::filesystem::path demo = std::filesystem::path(PERIGEE_SOURCE_DIR) / "models" / "demo";
    std::filesystem::create_directories(path_);
    for (const char* name : {"tiktoken.model", "tokenizer_config.json"}) {
      std::filesystem::copy_file(demo / name, path_ / name, std::filesystem::copy_options::overwrite_existing);
    }
    json config = json::parse(std::ifstream(demo / "config.json"));
    config["text_config"].update(
        {{"num_hidden_layers", 2},    {"hidden_size", 64},         {"intermediate_size", 64},     {"num_attention_heads", 1},
         {"num_key_value_heads", 1},  {"q_lora_rank", 32},         {"kv_lora_rank", 64},          {"qk_nope_head_dim", 32},
         {"qk_rope_head_dim", 16},    {"v_head_dim", 32},          {"num_experts", 4},            {"num_experts_per_token", 2},
         {"num_shared_experts", 1},   {"moe_intermediate_size", 32}, {"routed_expert_hidden_size", 32}, {"index_n_heads", 1},
         {"index_head_dim", 32}});
    config["text_config"]["linear_attn_config"].update(
        {{"num_heads", 1}, {"head_dim", 32}, {"full_attn_layers", {2}}, {"kda_layers", {1}}});
    std::ofstream(path_ / "config.json") << config.dump();
  }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;
  ~ModelFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::vector<LoadRequest> make_requests(size_t count, Api api, int64_t tokens, const std::string& model) {
  std::vector<LoadRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    const bool chat = api == Api::kChat || (api == Api::kBoth && i % 2 == 0);
    json body = {{"model", model},  {"max_tokens", tokens}, {"ignore_eos", true},
                 {"stream", true},  {"seed", i},            {"stream_options", {{"include_usage", true}}}};
    if (chat) {
      body["messages"] = {{{"role", "user"}, {"content", fmt::format("What does stream {} say?", i)}}};
    } else {
      for (uint64_t k = 0; k < kPromptTokens; ++k) body["prompt"].push_back(random_bits(i + 1, k) % kWords);
    }
    const std::string text = body.dump();
    requests.push_back({fmt::format("POST /v1/{} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
                                    "Content-Length: {}\r\n\r\n{}",
                                    chat ? "chat/completions" : "completions", text.size(), text),
                        tokens});
  }
  return requests;
}

double median(const std::vector<double>& values) { return quantile(values, 0.5); }

std::string spread(const std::vector<double>& v) {
  return fmt::format("{:.2f} / {:.2f} / {:.2f}", quantile(v, 0), median(v), quantile(v, 1));
}

std::map<int, double> difference(std::map<int, double> after, const std::map<int, double>& before) {
  for (const auto& [thread, cpu_s] : before) after[thread] -= cpu_s;
  return after;
}

// The same requests over HTTP and on the engine alone.
struct Pair {
  RoundFigures round;
  int64_t steps = 0;
  double http_s = 0;
  double engine_s = 0;
  std::map<int, double> http_threads;
  std::map<int, double> engine_threads;

  // Processor time of the threads that have nothing to do while the engine runs alone.
  double own_threads_s() const {
    double sum = 0;
    for (const auto& [thread, cpu_s] : http_threads) {
      const auto found = engine_threads.find(thread);
      if (found == engine_threads.end() || found->second < kEngineShare * engine_s) sum += cpu_s;
    }
    return sum;
  }
};

struct PairFigures {
  std::vector<double> token_us;
  std::vector<double> chunk_us;
  std::vector<double> thread_us;

  void add(const Pair& p, int number) {
    const auto tokens = static_cast<double>(p.round.tokens);
    token_us.push_back(1e6 * (p.http_s - p.engine_s) / tokens);
    chunk_us.push_back(1e6 * (p.http_s - p.engine_s) / static_cast<double>(p.round.pieces));
    thread_us.push_back(1e6 * p.own_threads_s() / tokens);
    fmt::print("  {}: over HTTP {:.3f} s, engine alone {:.3f} s, {} steps, {} tokens, {} chunks with text: {:.2f} us a token, "
               "{:.2f} us a chunk; the server's own threads {:.2f} us a token (client {:.3f} s)\n",
               number, p.http_s, p.engine_s, p.steps, p.round.tokens, p.round.pieces, token_us.back(), chunk_us.back(),
               thread_us.back(), p.round.client_cpu_s);
    std::fflush(stdout);
  }
};

// Nothing to do is left after a moment: what follows the last byte is part of a run.
void settle() { std::this_thread::sleep_for(kSettle); }

class Bench {
 public:
  explicit Bench(Flags flags) : flags_(std::move(flags)) {}

  bool run() {
    streams();
    const auto server = ServerProcess::start(stack(kOverheadStreams));
    if (!server.ok()) {
      check(false, server.error().message);
      return ok_;
    }
    overhead(**server, Api::kCompletions, "/v1/completions");
    overhead(**server, Api::kChat, "/v1/chat/completions");
    connections(**server);
    return ok_;
  }
  const json& report() const { return report_; }

 private:
  StackOptions stack(size_t seqs) const {
    return {model_.path(), static_cast<int64_t>(seqs), kChatPromptMax + flags_.tokens, flags_.engine_threads};
  }

  void check(bool good, const std::string& what) {
    fmt::print("  {}: {}\n", what, good ? "met" : "MISSED");
    report_["aims"].push_back({{"aim", what}, {"met", good}});
    ok_ = ok_ && good;
  }

  // One round's line, its part of the report, and what must hold of every round.
  bool show(const RoundFigures& r, int64_t resident, const std::string& name) {
    const double pieces_each = static_cast<double>(r.pieces) / static_cast<double>(std::max<int64_t>(r.tokens, 1));
    fmt::print("  {:<10} {} streams, {} at once, {} tokens ({:.2f} chunks with text a token) in {:.2f} s: {:.0f} tokens/s; first "
               "token {:.0f} ms p50, {:.0f} ms p99; between two {:.1f} ms p50, {:.1f} ms p99; {} faulty, {} stuck; server "
               "{:.2f} MiB\n",
               name, r.streams, r.at_once, r.tokens, pieces_each, r.seconds, static_cast<double>(r.tokens) / r.seconds,
               1e3 * median(r.first_s), 1e3 * quantile(r.first_s, 0.99), 1e3 * median(r.gaps_s),
               1e3 * quantile(r.gaps_s, 0.99), r.faults, r.stuck, static_cast<double>(resident) / (1 << 20));
    if (!r.first_fault.empty()) fmt::print("  {:<10} the first fault: {}\n", "", r.first_fault);
    std::fflush(stdout);
    report_["rounds"].push_back({{"name", name},
                                 {"streams", r.streams},
                                 {"at_once", r.at_once},
                                 {"faults", r.faults},
                                 {"stuck", r.stuck},
                                 {"tokens", r.tokens},
                                 {"pieces", r.pieces},
                                 {"seconds", r.seconds},
                                 {"client_cpu_s", r.client_cpu_s},
                                 {"first_p50_s", median(r.first_s)},
                                 {"first_p99_s", quantile(r.first_s, 0.99)},
                                 {"gap_p50_s", median(r.gaps_s)},
                                 {"gap_p99_s", quantile(r.gaps_s, 0.99)},
                                 {"resident_bytes", resident}});
    return r.faults == 0 && r.stuck == 0;
  }

  void streams() {
    fmt::print("{} concurrent streams of {} tokens, {} rounds, engine on {} thread(s)\n", flags_.streams, flags_.tokens,
               flags_.rounds, flags_.engine_threads);
    const auto server = ServerProcess::start(stack(flags_.streams));
    if (!server.ok()) return check(false, server.error().message);
    const auto load = StreamLoad::connect((*server)->port(), flags_.streams);
    if (!load.ok()) return check(false, load.error().message);
    const std::vector<LoadRequest> requests = make_requests(flags_.streams, Api::kBoth, flags_.tokens, model_.path());
    bool whole = true;
    bool same = true;
    std::vector<uint64_t> digests;
    std::vector<int64_t> resident;
    const double cpu = (*server)->cpu_s();
    for (int round = 0; round < flags_.rounds; ++round) {
      const RoundFigures r = (*load)->run(requests, kSilenceMax_s);
      settle();
      resident.push_back((*server)->resident_bytes());
      whole = show(r, resident.back(), fmt::format("round {}", round + 1)) && whole;
      if (round == 0) digests = r.digests;
      same = same && r.digests == digests;
    }
    fmt::print("  the server's processor time: {:.1f} s\n", (*server)->cpu_s() - cpu);
    check(whole, "every stream is whole, none is stuck");
    check(same, "every stream has the same text in all rounds");
    if (resident.size() < 3) return;
    const int64_t growth = resident.back() - resident[1];
    const double share = static_cast<double>(growth) / static_cast<double>(resident[1]);
    check(growth <= kFlatBytes || share <= kFlatShare,
          fmt::format("memory is flat: {:+.2f} MiB ({:+.2f} %) from round 2 to round {}",
                      static_cast<double>(growth) / (1 << 20), 100 * share, resident.size()));
  }

  void overhead(ServerProcess& server, Api api, const char* name) {
    fmt::print("server overhead of {} at {} streams of {} tokens\n", name, kOverheadStreams, flags_.tokens);
    const auto load = StreamLoad::connect(server.port(), kOverheadStreams);
    if (!load.ok()) return check(false, load.error().message);
    const std::vector<LoadRequest> requests = make_requests(kOverheadStreams, api, flags_.tokens, model_.path());
    PairFigures all;
    bool whole = true;
    for (int repeat = 0; repeat <= flags_.repeats; ++repeat) {  // the first pair warms up and is not counted
      Pair p;
      if (repeat % 2 == 1) whole = engine_alone(server, p) && whole;
      whole = over_http(server, **load, requests, repeat == 0, p) && whole;
      if (repeat % 2 == 0) whole = engine_alone(server, p) && whole;
      if (!p.round.first_fault.empty()) fmt::print("  the first fault: {}\n", p.round.first_fault);
      if (repeat > 0 && p.round.tokens > 0) all.add(p, repeat);
    }
    fmt::print("  min / median / max: {} us a token, {} us a chunk; {} us a token on the server's own threads\n",
               spread(all.token_us), spread(all.chunk_us), spread(all.thread_us));
    report_["overhead"].push_back({{"route", name},
                                   {"us_per_token", all.token_us},
                                   {"us_per_chunk", all.chunk_us},
                                   {"us_per_token_own_threads", all.thread_us}});
    check(whole, "every stream is whole in both ways");
    check(!all.chunk_us.empty() && median(all.chunk_us) <= kOverheadAim_us,
          fmt::format("{}: at most {} us a token at the median", name, kOverheadAim_us));
  }

  bool over_http(ServerProcess& server, StreamLoad& load, const std::vector<LoadRequest>& requests, bool keep, Pair& out) {
    const Result<int64_t> steps = server.steps();
    if (!steps.ok() || !server.hold(kOverheadStreams, keep).ok()) return false;
    const double before = server.cpu_s();
    const auto threads = server.thread_cpu_s();
    out.round = load.run(requests, kSilenceMax_s);
    settle();
    out.http_s = server.cpu_s() - before;
    out.http_threads = difference(server.thread_cpu_s(), threads);
    const Result<int64_t> steps_now = server.steps();
    if (!steps_now.ok()) return false;
    out.steps = *steps_now - *steps;
    return out.round.faults == 0 && out.round.stuck == 0 && out.round.tokens > 0;
  }

  bool engine_alone(ServerProcess& server, Pair& out) {
    const double before = server.cpu_s();
    const auto threads = server.thread_cpu_s();
    const Result<int64_t> tokens = server.replay();
    settle();
    out.engine_s = server.cpu_s() - before;
    out.engine_threads = difference(server.thread_cpu_s(), threads);
    return tokens.ok() && *tokens == static_cast<int64_t>(kOverheadStreams) * flags_.tokens;
  }

  void connections(ServerProcess& server) {
    fmt::print("{} idle connections while {} streams run\n", flags_.connections, kOverheadStreams);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const size_t needed = flags_.connections + kOverheadStreams + std::max(kClientFiles, kServerFiles);
    if (limit.rlim_cur < needed) {
      fmt::print("  NOT MEASURED: the limit on open files is {}, this needs {}; raise it with 'ulimit -Hn'\n", limit.rlim_cur,
                 needed);
      report_["connections"] = "not measured: limit on open files";
      return;
    }
    const auto load = StreamLoad::connect(server.port(), kOverheadStreams);
    if (!load.ok()) return check(false, load.error().message);
    const std::vector<LoadRequest> requests = make_requests(kOverheadStreams, Api::kBoth, flags_.tokens, model_.path());
    bool whole = true;
    const auto measure = [&](const std::string& name) {
      const double before = server.cpu_s();
      const RoundFigures r = (*load)->run(requests, kSilenceMax_s);
      settle();
      const double cpu = server.cpu_s() - before;
      whole = show(r, server.resident_bytes(), name) && whole;
      fmt::print("  {:<10} the server's processor time: {:.2f} s\n", "", cpu);
    };
    measure("before");
    const int64_t resident = server.resident_bytes();
    IdleConnections idle("/ping");
    Status held = idle.open(server.port(), flags_.connections);
    const int64_t per_connection =
        (server.resident_bytes() - resident) / static_cast<int64_t>(std::max<size_t>(flags_.connections, 1));
    const double before = server.cpu_s();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    fmt::print("  {} connections are held: {} bytes each in the server, {:.1f} ms of its processor time a second\n", idle.count(),
               per_connection, 1e3 * (server.cpu_s() - before));
    for (int i = 0; i < 3; ++i) measure(fmt::format("held {}", i + 1));
    if (held.ok()) held = idle.ask_all();
    report_["connections"] = {{"held", idle.count()}, {"bytes_each", per_connection}};
    if (!held.ok()) fmt::print("  {}\n", held.error().message);
    check(held.ok() && idle.count() == flags_.connections,
          fmt::format("{} connections answer before and after", flags_.connections));
    check(whole, "every stream is whole, none is stuck");
  }

  Flags flags_;
  ModelFolder model_;
  json report_;
  bool ok_ = true;
};

// As far as one may; a stream is one file here and one in the server.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace
}  // namespace perigee::bench

int main(int argc, char** argv) {
  using namespace perigee;
  bench::Flags flags;
  CLI::App app("The whole server under load over HTTP");
  app.add_option("--streams", flags.streams, "streams at once")->check(CLI::Range(1, 15'000));
  app.add_option("--tokens", flags.tokens, "tokens of each stream")->check(CLI::Range(1, 1 << 20));
  app.add_option("--rounds", flags.rounds, "rounds of all streams; memory is judged from three on")->check(CLI::Range(1, 1000));
  app.add_option("--connections", flags.connections, "idle connections")->check(CLI::Range(0, 15'000));
  app.add_option("--repeats", flags.repeats, "pairs of runs for the overhead")->check(CLI::Range(1, 100));
  app.add_option("--engine-threads", flags.engine_threads, "threads of the engine")->check(CLI::Range(1, 256));
  app.add_option("--json", flags.json_file, "file for all figures");
  CLI11_PARSE(app, argc, argv);
  bench::raise_file_limit();
  double load[3] = {};
  ::getloadavg(load, 3);
  fmt::print("{}, {} cores, load average {:.2f} before the start\n", bench::processor_name(),
             std::thread::hardware_concurrency(), load[0]);
  bench::Bench bench(flags);
  const bool ok = bench.run();
  if (!flags.json_file.empty()) {
    const Status written = write_file(flags.json_file, bench.report().dump(1) + "\n");
    if (!written.ok()) {
      std::fprintf(stderr, "perigee_bench_serve: --json: %s\n", written.error().message.c_str());
      return 2;
    }
  }
  return ok ? 0 : 1;
}
