// What a prefix that is still cached saves: time to the first token with and without it, and that no bit differs.
//   perigee_bench_prefix [--model DIR] [--threads N] [--repeats N]
// Cold runs are the same requests under a salt of their own, so nothing of the cache fits them. Times are from submit() to the
// first token, one request at a time except for the sub-agents, which are sent at once. The conversation is held --repeats times;
// the times of a turn and of its cold run are medians over them. A turn's aim is one decode step plus
// 1.3 times its share of new tokens times its cold run; the repeated prompt's is a tenth of its cold run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>

#include "base/rng.h"
#include "engine/service.h"

namespace perigee::bench {
namespace {

using engine::TokenLogprob;
using engine::TokenRequest;
using Clock = std::chrono::steady_clock;

struct Run {
  double first_token_s = 0;
  double total_s = 0;
  int64_t cached = 0;
  std::vector<TokenLogprob> tokens;
  bool done = false;
};

class Client {
 public:
  explicit Client(engine::Service& service) : service_(service) {}

  std::vector<Run> run(const std::vector<TokenRequest>& requests) {
    std::vector<Run> runs(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto start = Clock::now();
      const auto sink = [this, &run = runs[i], start](engine::TokenUpdate&& u) {
        std::lock_guard lock(mutex_);
        const double now = std::chrono::duration<double>(Clock::now() - start).count();
        if (run.tokens.empty() && !u.tokens.empty()) run.first_token_s = now;
        for (TokenLogprob& t : u.tokens) run.tokens.push_back(std::move(t));
        run.cached = std::max(run.cached, u.cached_tokens);
        run.total_s = now;
        run.done = u.finish.has_value();
        wake_.notify_all();
      };
      CHECK(service_.submit(requests[i], sink).ok());
    }
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return std::all_of(runs.begin(), runs.end(), [](const Run& r) { return r.done; }); });
    return runs;
  }

 private:
  engine::Service& service_;
  std::mutex mutex_;
  std::condition_variable wake_;
};

std::vector<int32_t> random_ids(uint64_t seed, int64_t n, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) {
    ids.push_back(static_cast<int32_t>(random_bits(seed, static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab - 256)));
  }
  return ids;
}

void append(std::vector<int32_t>& to, const std::vector<int32_t>& more) { to.insert(to.end(), more.begin(), more.end()); }

TokenRequest request_of(const std::vector<int32_t>& prompt, int64_t max_tokens, const std::string& salt) {
  TokenRequest r;
  r.prompt = prompt;
  r.max_tokens = max_tokens;
  r.cache_salt = salt;
  r.sampling.seed = 1;
  return r;
}

bool same_bits(const Run& a, const Run& b) {
  return a.tokens.size() == b.tokens.size() &&
         std::equal(a.tokens.begin(), a.tokens.end(), b.tokens.begin(),
                    [](const TokenLogprob& x, const TokenLogprob& y) { return x.id == y.id && x.logprob == y.logprob; });
}

struct Bench {
  Client client;
  int64_t vocab;
  int64_t colds = 0;
  bool ok = true;

  Run cold(const std::vector<int32_t>& prompt, int64_t max_tokens) {
    return client.run({request_of(prompt, max_tokens, fmt::format("cold {}", colds++))})[0];
  }

  void check(bool good, const char* what) {
    std::printf("  %s: %s\n", what, good ? "met" : "MISSED");
    ok = ok && good;
  }

  void repeated() {
    const std::vector<int32_t> prompt = random_ids(1, 5000, vocab);
    const Run first = cold(prompt, 8);
    std::printf("the same prompt of 5,000 tokens four times; cold: first token after %.1f ms\n", 1e3 * first.first_token_s);
    double worst = 0;
    bool bits = true;
    for (int i = 0; i < 4; ++i) {
      const Run r = client.run({request_of(prompt, 8, "")})[0];
      std::printf("  %d: %.1f ms, %.3f of cold, %ld of %zu tokens cached (%.1f %%)\n", i + 1, 1e3 * r.first_token_s,
                  r.first_token_s / first.first_token_s, r.cached, prompt.size(),
                  100.0 * static_cast<double>(r.cached) / static_cast<double>(prompt.size()));
      if (i > 0) worst = std::max(worst, r.first_token_s / first.first_token_s);
      bits = bits && same_bits(r, first);
    }
    check(worst <= 0.10, "at most 0.10 of the cold run");
    check(bits, "bits equal to the cold run");
  }

  struct Turn {
    size_t tokens = 0;
    int64_t cached = 0;
    std::vector<double> first_token_s, cold_s, step_s;
  };

  // Talks once and adds the times to the turns. Returns whether all bits were those of the cold runs.
  bool talk(const std::string& salt, std::vector<Turn>& turns) {
    std::vector<int32_t> ids = random_ids(2, 1500, vocab);
    bool bits = true;
    for (size_t i = 0; i < turns.size(); ++i) {
      const Run r = client.run({request_of(ids, 40, salt)})[0];
      const Run c = cold(ids, 40);
      Turn& turn = turns[i];
      turn.tokens = ids.size();
      turn.cached = r.cached;
      turn.first_token_s.push_back(r.first_token_s);
      turn.cold_s.push_back(c.first_token_s);
      turn.step_s.push_back((c.total_s - c.first_token_s) / 39);
      bits = bits && same_bits(r, c);
      for (const TokenLogprob& t : r.tokens) ids.push_back(t.id);
      append(ids, random_ids(100 + i, 200, vocab));
    }
    return bits;
  }

  static double median(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
  }

  void conversation(int repeats) {
    std::printf("a conversation of 30 turns: 1,500 tokens at first, then 200 new ones and an answer of 40 each turn; ");
    std::printf("medians of %d\n", repeats);
    std::vector<Turn> turns(30);
    bool bits = true;
    for (int i = 0; i < repeats; ++i) bits = talk(fmt::format("talk {}", i), turns) && bits;
    size_t looked_up = 0;
    int64_t hits = 0;
    int late = 0;
    double worst = 0;
    for (size_t i = 0; i < turns.size(); ++i) {
      const Turn& turn = turns[i];
      const auto length = static_cast<double>(turn.tokens);
      const double first = median(turn.first_token_s);
      const double aim = median(turn.step_s) + 1.3 * (length - static_cast<double>(turn.cached)) / length * median(turn.cold_s);
      looked_up += turn.tokens;
      hits += turn.cached;
      if (i > 0) {
        worst = std::max(worst, first / aim);
        late += first > aim ? 1 : 0;
      }
      if (i % 5 == 4) {
        std::printf("  turn %2zu: %zu tokens, %ld cached, first token after %.1f ms (cold %.1f ms, aim %.1f ms)\n", i + 1,
                    turn.tokens, turn.cached, 1e3 * first, 1e3 * median(turn.cold_s), 1e3 * aim);
      }
    }
    std::printf("  hit rate %.1f %% of all prompt tokens; %d of 29 turns over the aim, the worst %.2f of it\n",
                100.0 * static_cast<double>(hits) / static_cast<double>(looked_up), late, worst);
    check(late == 0, "every turn within its aim");
    check(bits, "bits equal to the cold runs");
  }

  void sub_agents() {
    std::printf("8 sub-agents at once: a shared prefix of 3,000 tokens and 60 of their own\n");
    std::vector<TokenRequest> requests;
    for (uint64_t i = 0; i < 8; ++i) {
      std::vector<int32_t> ids = random_ids(3, 3000, vocab);
      append(ids, random_ids(200 + i, 60, vocab));
      requests.push_back(request_of(ids, 16, ""));
    }
    const auto start = Clock::now();
    const std::vector<Run> together = client.run(requests);
    const double shared_s = std::chrono::duration<double>(Clock::now() - start).count();
    std::vector<TokenRequest> apart = requests;
    for (TokenRequest& r : apart) r.cache_salt = fmt::format("cold {}", colds++);
    const auto cold_start = Clock::now();
    const std::vector<Run> colds_run = client.run(apart);
    const double cold_s = std::chrono::duration<double>(Clock::now() - cold_start).count();
    int64_t hits = 0;
    bool bits = true;
    for (size_t i = 0; i < together.size(); ++i) {
      hits += together[i].cached;
      bits = bits && same_bits(together[i], colds_run[i]);
    }
    std::printf("  all done after %.0f ms, %.0f ms without sharing; %.1f %% of prompt tokens cached\n", 1e3 * shared_s,
                1e3 * cold_s, 100.0 * static_cast<double>(hits) / (8.0 * 3060.0));
    check(hits >= 7 * 2976, "seven of eight find the prefix");
    check(bits, "bits equal to the runs without sharing");
  }
};

}  // namespace
}  // namespace perigee::bench

int main(int argc, char** argv) {
  std::string model = PERIGEE_SOURCE_DIR "/models/demo";
  int threads = 0;
  int repeats = 3;
  CLI::App app("Time to the first token with and without a cached prefix");
  app.add_option("--model", model, "checkpoint folder");
  app.add_option("--threads", threads, "threads to use");
  app.add_option("--repeats", repeats, "conversations to take medians of")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  perigee::engine::EngineOptions options;
  options.model = model;
  options.threads = threads;
  auto engine = perigee::engine::Engine::open(options);
  if (!engine.ok()) {
    std::fprintf(stderr, "perigee_bench_prefix: %s\n", engine.error().message.c_str());
    return 2;
  }
  perigee::engine::ServiceOptions wanted;
  wanted.max_model_len = 12'000;
  wanted.cache_bytes = int64_t{1} << 30;
  wanted.prefault_cache = true;  // as in a server that has used all of its rows before
  auto service = perigee::engine::Service::create(**engine, wanted);
  if (!service.ok()) {
    std::fprintf(stderr, "perigee_bench_prefix: %s\n", service.error().message.c_str());
    return 2;
  }
  perigee::bench::Bench bench{perigee::bench::Client(**service), (*engine)->config().vocab};
  bench.repeated();
  bench.conversation(repeats);
  bench.sub_agents();
  return bench.ok ? 0 : 1;
}
