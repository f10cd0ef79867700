#include "serve/health.h"

#include <fmt/format.h>

#include <utility>

#include "serve/errors.h"

namespace perigee::serve {
namespace {

constexpr std::string_view kJson = "application/json";

void answer(Reply& reply, const std::string& trouble) {
  if (trouble.empty()) return reply.send(200, kJson, R"({"status":"ok"})", {});
  reply.send(503, kJson, fmt::format(R"({{"status":"unavailable","reason":{}}})", json_quoted(trouble)),
             {{"Retry-After", "1"}});
}

}  // namespace

std::string Health::trouble() const {
  if (state_->draining) return "the server is draining";
  const engine::Backend* backend = backend_.load();
  if (backend == nullptr) return "the model is loading";
  const engine::BackendState state = backend->state();
  if (state.beat_age_s > kBeatAgeMax_s)
    return fmt::format("the engine's last sign of life is {:.1f} s old (step {}, {} running, {} waiting)", state.beat_age_s,
                       state.steps, state.running, state.waiting);
  if (state.draining) return "the engine is draining";
  return {};
}

std::string Health::not_ready() const {
  std::string reason = trouble();
  if (reason.empty() && backend_.load()->state().paused) reason = "the engine is paused";
  return reason;
}

std::string Health::load() const {
  engine::BackendState state;
  if (const engine::Backend* backend = backend_.load(); backend != nullptr) state = backend->state();
  return fmt::format(R"({{"server_load":{},"running":{},"waiting":{},"cache_usage":{:.6f},"connections":{},"draining":{}}})",
                     state_->in_flight.load(), state.running, state.waiting, state.cache_usage, state_->connections.load(),
                     state_->draining || state.draining);
}

std::vector<Route> Health::routes(const std::shared_ptr<Health>& self) {
  const auto open = [](std::string method, std::string path, Handler handler) {
    return Route{std::move(method), std::move(path), std::move(handler), Access::kOpen, Where::kInline};
  };
  const Handler health = [self](const HttpRequest&, const std::shared_ptr<Reply>& reply) { answer(*reply, self->trouble()); };
  const Handler ready = [self](const HttpRequest&, const std::shared_ptr<Reply>& reply) { answer(*reply, self->not_ready()); };
  const Handler version = [self](const HttpRequest&, const std::shared_ptr<Reply>& reply) {
    reply->send(200, kJson, fmt::format(R"({{"version":{}}})", json_quoted(self->version_)), {});
  };
  const Handler load = [self](const HttpRequest&, const std::shared_ptr<Reply>& reply) {
    if (self->backend_.load() == nullptr) return answer(*reply, self->trouble());
    reply->send(200, kJson, self->load(), {});
  };
  return {open("GET", "/health", health), open("GET", "/ping", health),       open("POST", "/ping", health),
          open("GET", "/ready", ready),   open("GET", "/version", version),
          Route{"GET", "/load", load, Access::kKey, Where::kInline}};
}

}  // namespace perigee::serve
