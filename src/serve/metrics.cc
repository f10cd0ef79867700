#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace perigee::serve {
namespace {

// Bounds as vLLM has them, so that its dashboards' quantiles mean the same.
const std::vector<double> kFirstToken_s = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                           1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const std::vector<double> kInterToken_s = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                           0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const std::vector<double> kRequest_s = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
                                        30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kChoices = {1, 2, 5, 10, 20};

// 1, 2, 5, 10, ... up to a million tokens, the longest context there is.
std::vector<double> token_bounds() {
  std::vector<double> bounds;
  for (double decade = 1; decade <= 1e6; decade *= 10) {
    for (const double step : {1, 2, 5}) {
      if (step * decade <= 1e6) bounds.push_back(step * decade);
    }
  }
  return bounds;
}

std::string escaped(std::string_view value) {
  std::string result;
  for (const char c : value) {
    if (c == '\\' || c == '"') result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result;
}

void title(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  fmt::format_to(std::back_inserter(out), "# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

template <class T>
void value(std::string& out, std::string_view name, std::string_view labels, T number) {
  fmt::format_to(std::back_inserter(out), "{}{{{}}} {}\n", name, labels, number);
}

template <class T>
void single(std::string& out, std::string_view name, std::string_view type, std::string_view help, std::string_view labels,
            T number) {
  title(out, name, type, help);
  value(out, name, labels, number);
}

void histogram(std::string& out, std::string_view name, std::string_view help, std::string_view labels, const Histogram& data) {
  title(out, name, "histogram", help);
  data.print(out, name, labels);
}

void print_backend(std::string& out, const engine::Backend& backend, const std::string& labels) {
  const engine::BackendState s = backend.state();
  const engine::BackendInfo& info = backend.info();
  const auto gauge = [&](std::string_view name, std::string_view help, auto number) {
    single(out, name, "gauge", help, labels, number);
  };
  const auto counter = [&](std::string_view name, std::string_view help, uint64_t number) {
    single(out, name, "counter", help, labels, number);
  };
  gauge("vllm:num_requests_running", "Requests in execution.", s.running);
  gauge("vllm:num_requests_waiting", "Requests that wait to be executed.", s.waiting);
  gauge("vllm:kv_cache_usage_perc", "Share of the cache in use, 0 to 1.", s.cache_usage);
  counter("vllm:num_preemptions_total", "Requests put back to make room.", s.preemptions);
  counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache, once per request.", s.prefix_queries);
  counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", s.prefix_hits);
  counter("vllm:prompt_tokens_total", "Prompt tokens, computed or found in the cache.", s.prompt_tokens + s.prefix_hits);
  counter("vllm:prompt_tokens_cached_total", "Prompt tokens found in the cache.", s.prefix_hits);
  title(out, "vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by where they came from.");
  value(out, "vllm:prompt_tokens_by_source_total", labels + R"(,source="local_compute")", s.prompt_tokens);
  value(out, "vllm:prompt_tokens_by_source_total", labels + R"(,source="local_cache_hit")", s.prefix_hits);
  counter("vllm:generation_tokens_total", "Generated tokens.", s.generated_tokens);
  counter("perigee:steps_total", "Steps of the engine.", s.steps);
  counter("perigee:verified_requests_total", "Finished requests that were scored again.", s.verified);
  counter("perigee:mismatched_requests_total", "Of those, requests whose bits differed.", s.mismatches);
  gauge("perigee:engine_beat_age_seconds", "Time since the engine's last sign of life.", s.beat_age_s);
  const std::string config =
      fmt::format(R"({},block_size="{}",num_gpu_blocks="{}",cache_dtype="{}",index_key_dtype="{}",)"
                  R"(cache_tokens="{}",max_model_len="{}")",
                  labels, info.block_tokens, info.rows, escaped(info.latent_format), escaped(info.key_format),
                  info.cache_tokens, info.max_model_len);
  single(out, "vllm:cache_config_info", "gauge", "How the cache is laid out.", config, 1);
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::observe(double value, uint64_t times) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(at)].fetch_add(times, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(times), std::memory_order_relaxed);
}

void Histogram::print(std::string& out, std::string_view name, std::string_view labels) const {
  uint64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i].load(std::memory_order_relaxed);
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    fmt::format_to(std::back_inserter(out), "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, total);
  }
  value(out, fmt::format("{}_sum", name), labels, sum_.load(std::memory_order_relaxed));
  value(out, fmt::format("{}_count", name), labels, total);
}

Metrics::Metrics(std::string model_name, std::shared_ptr<ServerState> state)
    : labels_(fmt::format(R"(model_name="{}",engine="0")", escaped(model_name))),
      state_(std::move(state)),
      first_token_(kFirstToken_s),
      inter_token_(kInterToken_s),
      per_token_(kInterToken_s),
      e2e_(kRequest_s),
      queue_(kRequest_s),
      prefill_(kRequest_s),
      decode_(kRequest_s),
      inference_(kRequest_s),
      prompt_tokens_(token_bounds()),
      generated_tokens_(token_bounds()),
      max_tokens_(token_bounds()),
      n_(kChoices),
      http_seconds_(kFirstToken_s) {
  for (const char* reason : {"stop", "length", "tool_calls", "abort", "error"}) finished_[reason] = 0;
}

void Metrics::inter_token(double seconds, int64_t tokens) {
  if (tokens > 0) inter_token_.observe(seconds / static_cast<double>(tokens), static_cast<uint64_t>(tokens));
}

void Metrics::request_finished(const RequestReport& report) {
  e2e_.observe(report.e2e_s);
  if (report.queue_s) queue_.observe(*report.queue_s);
  if (report.prefill_s) prefill_.observe(*report.prefill_s);
  if (report.decode_s) {
    decode_.observe(*report.decode_s);
    if (report.prefill_s) inference_.observe(*report.prefill_s + *report.decode_s);
    // The n answers are made at the same time; each has one token fewer than that after its first.
    const int64_t gaps = report.generated_tokens - report.n;
    if (gaps > 0) per_token_.observe(*report.decode_s * static_cast<double>(report.n) / static_cast<double>(gaps));
  }
  prompt_tokens_.observe(static_cast<double>(report.prompt_tokens));
  generated_tokens_.observe(static_cast<double>(report.generated_tokens));
  n_.observe(static_cast<double>(report.n));
  if (report.max_tokens) max_tokens_.observe(static_cast<double>(*report.max_tokens));
  std::lock_guard lock(mutex_);
  const auto it = finished_.find(report.finish_reason);
  ++(it != finished_.end() ? it->second : finished_[std::string(report.finish_reason)]);
}

void Metrics::exchange_finished(const FinishedRequest& finished) {
  http_seconds_.observe(finished.seconds);
  // Strangers choose methods and paths freely: without a route they all count as one, or they could fill the memory.
  const bool known = !finished.route.empty();
  std::lock_guard lock(mutex_);
  ++exchanges_[{known ? finished.method : "other", known ? finished.route : "none", finished.status}];
}

void Metrics::print_requests(std::string& out) const {
  const auto all = [&](std::string_view name, std::string_view help, const Histogram& data) {
    histogram(out, name, help, labels_, data);
  };
  all("vllm:time_to_first_token_seconds", "Arrival to first token.", first_token_);
  all("vllm:inter_token_latency_seconds", "Between tokens.", inter_token_);
  all("vllm:request_time_per_output_token_seconds", "Mean between tokens, per request.", per_token_);
  all("vllm:e2e_request_latency_seconds", "Arrival to end.", e2e_);
  all("vllm:request_queue_time_seconds", "Arrival to first step.", queue_);
  all("vllm:request_prefill_time_seconds", "First step to first token.", prefill_);
  all("vllm:request_decode_time_seconds", "First to last token.", decode_);
  all("vllm:request_inference_time_seconds", "First step to last token.", inference_);
  all("vllm:request_prompt_tokens", "Prompt tokens per request.", prompt_tokens_);
  all("vllm:request_generation_tokens", "Generated tokens per request.", generated_tokens_);
  all("vllm:request_params_max_tokens", "The parameter max_tokens.", max_tokens_);
  all("vllm:request_params_n", "The parameter n.", n_);
  title(out, "vllm:request_success_total", "counter", "Finished requests by reason.");
  std::lock_guard lock(mutex_);
  for (const auto& [reason, count] : finished_)
    value(out, "vllm:request_success_total", fmt::format(R"({},finished_reason="{}")", labels_, escaped(reason)), count);
}

void Metrics::print_server(std::string& out) const {
  const auto gauge = [&](std::string_view name, std::string_view help, auto number) {
    single(out, name, "gauge", help, labels_, number);
  };
  const auto counter = [&](std::string_view name, std::string_view help, uint64_t number) {
    single(out, name, "counter", help, labels_, number);
  };
  gauge("perigee:http_connections", "Open connections.", state_->connections.load());
  gauge("perigee:http_requests_in_flight", "HTTP requests being answered.", state_->in_flight.load());
  counter("perigee:http_disconnects_total", "Peers that left before the end of their answer.", state_->disconnects.load());
  counter("perigee:http_readers_cut_total", "Connections closed because the peer did not read.", state_->readers_cut.load());
  counter("perigee:http_connections_refused_total", "Connections over the limit.", state_->connections_refused.load());
  histogram(out, "http_request_duration_seconds", "First byte of a request to the end of its answer.", labels_, http_seconds_);
  title(out, "http_requests_total", "counter", "Answered HTTP requests.");
  std::lock_guard lock(mutex_);
  for (const auto& [key, count] : exchanges_) {
    const auto& [method, route, status] = key;
    const std::string labels = fmt::format(R"(method="{}",handler="{}",status="{}")", escaped(method), escaped(route), status);
    value(out, "http_requests_total", labels, count);
  }
}

std::string Metrics::print() const {
  std::string out;
  if (const engine::Backend* backend = backend_.load(); backend != nullptr) print_backend(out, *backend, labels_);
  print_requests(out);
  print_server(out);
  return out;
}

Route Metrics::route(const std::shared_ptr<Metrics>& self, Access access) {
  const Handler handler = [self](const HttpRequest&, const std::shared_ptr<Reply>& reply) {
    reply->send(200, "text/plain; version=0.0.4; charset=utf-8", self->print(), {});
  };
  return {"GET", "/metrics", handler, access, Where::kWorker};
}

}  // namespace perigee::serve
