#include "bench/cpu/serve_stack.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <memory>
#include <mutex>
#include <vector>

#include "cache/layout.h"
#include "engine/service.h"
#include "model/state.h"
#include "serve/api.h"
#include "serve/health.h"
#include "serve/metrics.h"
#include "serve/server.h"
#include "text/tokenizer.h"

namespace perigee::bench {
namespace {

using engine::TokenRequest;

// Passes everything on to the service; holds requests back until all have come, and keeps copies of them.
class Gate : public engine::Backend {
 public:
  explicit Gate(engine::Service& service) : service_(service) {}

  const engine::BackendInfo& info() const override { return service_.info(); }
  engine::BackendState state() const override { return service_.state(); }
  void cancel(engine::RequestKey key) override { service_.cancel(key); }
  void complete(engine::RequestKey key, int64_t tokens) override { service_.complete(key, tokens); }
  void drain() override { service_.drain(); }
  void pause(bool paused) override { service_.pause(paused); }
  void reset_prefix_cache() override { service_.reset_prefix_cache(); }

  Result<engine::RequestKey> submit(TokenRequest request, engine::OnUpdate on_update) override {
    bool last = false;
    {
      const std::lock_guard lock(mutex_);
      if (keep_ && held_ > 0) kept_.push_back(request);
      last = held_ > 0 && --held_ == 0;
    }
    Result<engine::RequestKey> key = service_.submit(std::move(request), std::move(on_update));
    if (last) service_.pause(false);
    return key;
  }

  void hold(int64_t requests, bool keep) {
    const std::lock_guard lock(mutex_);
    held_ = requests;
    keep_ = keep;
    if (keep) kept_.clear();
    service_.pause(true);
  }

  int64_t replay() {
    std::vector<TokenRequest> requests;
    {
      const std::lock_guard lock(mutex_);
      requests = kept_;
    }
    hold(static_cast<int64_t>(requests.size()), false);
    std::mutex mutex;
    std::condition_variable over;
    size_t left = requests.size();
    int64_t tokens = 0;
    for (TokenRequest& request : requests) {
      const auto key = submit(std::move(request), [&](engine::TokenUpdate&& update) {
        const std::lock_guard lock(mutex);
        tokens += static_cast<int64_t>(update.tokens.size());
        if (update.finish.has_value() && --left == 0) over.notify_one();
      });
      CHECK(key.ok());  // it was taken before
    }
    std::unique_lock lock(mutex);
    over.wait(lock, [&] { return left == 0; });
    return tokens;
  }

 private:
  engine::Service& service_;
  std::mutex mutex_;
  int64_t held_ = 0;
  bool keep_ = false;
  std::vector<TokenRequest> kept_;
};

struct Stack {
  std::optional<text::Tokenizer> tokenizer;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<engine::Service> service;
  std::unique_ptr<Gate> gate;
  std::shared_ptr<serve::Health> health;
  std::shared_ptr<serve::Metrics> metrics;
  std::unique_ptr<serve::Api> api;
  std::unique_ptr<serve::Server> server;

  Status open_engine(const StackOptions& options);
  Status open_server(const StackOptions& options);
  ~Stack() {
    if (server != nullptr) server->stop();
    service.reset();  // ends what is left, so that the API hears of it
    if (api != nullptr) api->settle();
  }
};

Status Stack::open_engine(const StackOptions& options) {
  Result<text::Tokenizer> words = text::Tokenizer::load(options.model);
  if (!words.ok()) return words.error();
  tokenizer.emplace(std::move(*words));
  engine::EngineOptions wanted;
  wanted.model = options.model;
  wanted.threads = options.engine_threads;
  wanted.load.source = model::LoadOptions::Source::kDummy;
  Result<std::unique_ptr<engine::Engine>> opened = engine::Engine::open(wanted);
  if (!opened.ok()) return opened.error();
  engine = std::move(*opened);
  engine::ServiceOptions service_wanted;
  service_wanted.max_num_seqs = options.seqs;
  service_wanted.max_model_len = options.context;
  const model::StateLayout layout = model::make_state_layout(engine->config(), engine->device(), engine->formats());
  // Every sequence at its full length, and the copies of its state that the prefix cache may hold meanwhile.
  const int64_t rows = options.seqs * (cache::rows_of_request(layout.rows, options.context) + 4 * layout.state_groups);
  service_wanted.cache_bytes = rows * layout.rows.row_bytes;
  Result<std::unique_ptr<engine::Service>> made = engine::Service::create(*engine, service_wanted);
  if (!made.ok()) return made.error();
  service = std::move(*made);
  gate = std::make_unique<Gate>(*service);
  return {};
}

// As `perigee serve` does it, but for the access log and constrained decoding.
Status Stack::open_server(const StackOptions& options) {
  serve::ServerOptions wanted;
  wanted.port = 0;
  wanted.access_log = false;
  wanted.log = [](serve::LogLevel level, const std::string& line) {
    if (level != serve::LogLevel::kInfo) fmt::print(stderr, "server: {}\n", line);
  };
  serve::ApiOptions api_wanted;
  api_wanted.model_names = {options.model};
  api_wanted.end_ids = engine->config().stop_ids;
  api_wanted.created = static_cast<int64_t>(std::time(nullptr));
  health = std::make_shared<serve::Health>("bench", wanted.state);
  metrics = std::make_shared<serve::Metrics>(options.model, wanted.state);
  health->set_backend(gate.get());
  metrics->set_backend(gate.get());
  api_wanted.on_token_gap = [m = metrics](double seconds, int64_t tokens) { m->inter_token(seconds, tokens); };
  api_wanted.on_finished = [m = metrics](const serve::RequestRecord& r) {
    serve::RequestReport report;
    report.finish_reason = r.reason;
    report.prompt_tokens = r.prompt_tokens;
    report.generated_tokens = r.generated_tokens;
    report.e2e_s = r.total_s;
    if (r.first_token_s >= 0) m->first_token(r.first_token_s);
    m->request_finished(report);
  };
  api = std::make_unique<serve::Api>(std::move(api_wanted), *gate, *tokenizer);
  std::vector<serve::Route> routes = serve::Health::routes(health);
  routes.push_back(serve::Metrics::route(metrics, serve::Access::kOpen));
  for (serve::ApiRoute& r : api->routes()) {
    routes.push_back({r.method, r.path, std::move(r.handler), serve::Access::kKey,
                      r.heavy ? serve::Where::kWorker : serve::Where::kInline});
  }
  wanted.on_finished = [m = metrics](const serve::FinishedRequest& f) { m->exchange_finished(f); };
  Result<std::unique_ptr<serve::Server>> made = serve::Server::create(std::move(wanted), std::move(routes));
  if (!made.ok()) return made.error();
  server = std::move(*made);
  server->start();
  return {};
}

StackMessage obey(const StackMessage& order, Gate& gate) {
  StackMessage answer;
  switch (order.what) {
    case StackMessage::kHold:
    case StackMessage::kHoldAndKeep:
      gate.hold(order.number, order.what == StackMessage::kHoldAndKeep);
      break;
    case StackMessage::kReplay: answer.number = gate.replay(); break;
    case StackMessage::kSteps: answer.number = static_cast<int64_t>(gate.state().steps); break;
    default: answer.say("an order that is not known");
  }
  return answer;
}

}  // namespace

void StackMessage::say(std::string_view sentence) {
  what = kFailed;
  sentence.substr(0, text.size() - 1).copy(text.data(), text.size() - 1);
}

void serve_stack(const StackOptions& options, int channel) {
  Stack stack;
  StackMessage message;
  Status opened = stack.open_engine(options);
  if (opened.ok()) opened = stack.open_server(options);
  if (opened.ok()) {
    message.what = StackMessage::kReady;
    message.number = stack.server->port();
  } else {
    message.say(opened.error().message);
  }
  ::send(channel, &message, sizeof message, MSG_NOSIGNAL);
  while (opened.ok() && ::recv(channel, &message, sizeof message, 0) == sizeof message) {
    message = obey(message, *stack.gate);
    ::send(channel, &message, sizeof message, MSG_NOSIGNAL);
  }
}

}  // namespace perigee::bench
