// CPU time of the API layer per streamed token: handler, delivery, parser, detokenising and the chunk's JSON, without sockets.
// 256 streams get one token each per step, as from an engine; the whole process's CPU time is divided by the tokens.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <vector>

#include "serve/api.h"
#include "text/testing.h"

namespace perigee {
namespace {

constexpr size_t kStreams = 256;
constexpr int kRuns = 5;

class DirectBackend : public engine::Backend {
 public:
  DirectBackend() {
    info_.max_model_len = 1 << 20;
    info_.vocab = text::testing::demo_tokenizer().vocab_size();
  }
  const engine::BackendInfo& info() const override { return info_; }
  engine::BackendState state() const override { return {}; }
  Result<engine::RequestKey> submit(engine::TokenRequest, engine::OnUpdate on_update) override {
    calls.push_back(std::move(on_update));
    return calls.size();
  }
  void cancel(engine::RequestKey) override {}
  void complete(engine::RequestKey, int64_t) override {}
  void drain() override {}
  void pause(bool) override {}
  void reset_prefix_cache() override {}

  std::vector<engine::OnUpdate> calls;

 private:
  engine::BackendInfo info_;
};

class CountingReply : public serve::Reply {
 public:
  void send(int, std::string_view, std::string body, serve::Headers) override { bytes += body.size(); }
  void begin(int, std::string_view, serve::Headers) override {}
  void write(std::string piece) override { bytes += piece.size(); }
  void end() override {}
  void abandon() override {}
  void on_disconnect(std::function<void()>) override {}

  std::atomic<size_t> bytes{0};
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<int32_t> long_answer() {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "The quick brown fox jumps over the lazy dog, and then it rests. ";
  return text::testing::demo_tokenizer().encode_control(
      text + "<|close|>think<|sep|><|open|>response<|sep|>" + text +
      "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>");
}

struct Figures {
  double us_per_token = 0;
  double bytes_per_token = 0;
};

Figures run(const std::string& more, const std::vector<int32_t>& answer, size_t group) {
  DirectBackend backend;
  serve::ApiOptions options;
  options.model_names = {"demo"};
  serve::Api api(std::move(options), backend, text::testing::demo_tokenizer());
  const std::vector<serve::ApiRoute> routes = api.routes();
  const auto reply = std::make_shared<CountingReply>();
  serve::HttpRequest request;
  request.id = "request-0123456789abcdef";
  request.body = R"({"messages":[{"role":"user","content":"Hi"}],"stream":true)" + more + "}";
  for (size_t i = 0; i < kStreams; ++i) routes.front().handler(request, reply);

  const double before = cpu_seconds();
  for (size_t at = 0; at < answer.size(); at += group) {
    const size_t count = std::min(group, answer.size() - at);
    for (engine::OnUpdate& call : backend.calls) {
      engine::TokenUpdate update;
      update.tokens.resize(count);
      for (size_t i = 0; i < count; ++i) update.tokens[i].id = answer[at + i];
      if (at + count == answer.size()) update.finish = engine::RequestEnd::kStop;
      call(std::move(update));
    }
    api.settle();
  }
  const auto tokens = static_cast<double>(answer.size() * kStreams);
  return {(cpu_seconds() - before) / tokens * 1e6, static_cast<double>(reply->bytes) / tokens};
}

int bench() {
  const std::vector<int32_t> answer = long_answer();
  fmt::print(
      "{} streams, {} tokens each, one process; CPU microseconds per token (least of {} runs), bytes per token\n",
      kStreams, answer.size(), kRuns);
  struct Case {
    const char* name;
    const char* more;
    size_t group;
  };
  for (const Case& one : {Case{"chat, one token a step", "", 1}, Case{"chat, four tokens a step", "", 4},
                          Case{"chat, stop strings", R"(,"stop":["\n\nUser:","Observation:"])", 1},
                          Case{"chat, continuous usage", R"(,"stream_options":{"continuous_usage_stats":true})", 1},
                          Case{"chat, logprobs", R"(,"logprobs":true)", 1}}) {
    Figures best = run(one.more, answer, one.group);
    for (int i = 1; i < kRuns; ++i) {
      const Figures again = run(one.more, answer, one.group);
      if (again.us_per_token < best.us_per_token) best = again;
    }
    fmt::print("{:<28}{:>8.2f}{:>10.0f}\n", one.name, best.us_per_token, best.bytes_per_token);
  }
  return 0;
}

}  // namespace
}  // namespace perigee

int main() {
  return perigee::bench();
}
