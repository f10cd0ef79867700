// What    /metrics in Prometheus' text format, under the names of vLLM where the meaning is the same, so that its dashboards and
//         load tools work here; what only Perigee has begins with "perigee:".
// Owner   serve. API handlers report requests, the server reports exchanges; the engine's numbers are read at the scrape.
// Threads Any; reports are a few atomic additions.
// Errors  None.
// Source  Prometheus' exposition formats, text 0.0.4. Written here, because prometheus-cpp comes as shared libraries only (with
//         an HTTP server and a client of their own), and one file must start everywhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "engine/backend.h"
#include "serve/routes.h"
#include "serve/server_state.h"

namespace perigee::serve {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);  // ascending
  void observe(double value, uint64_t times = 1);
  // Appends "name_bucket{labels,le=...} n" and the sum and count.
  void print(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<uint64_t>> counts_;  // one more than bounds
  std::atomic<double> sum_{0};
};

// One request of an API, at its end. Times that never came are absent.
struct RequestReport {
  std::string_view finish_reason;  // "stop", "length", "tool_calls", "abort", "error"
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t n = 1;
  std::optional<int64_t> max_tokens;
  std::optional<double> queue_s;    // arrival to the first step
  std::optional<double> prefill_s;  // first step to first token
  std::optional<double> decode_s;   // first to last token
  double e2e_s = 0;                 // arrival to end
};

class Metrics {
 public:
  Metrics(std::string model_name, std::shared_ptr<ServerState> state);

  void set_backend(const engine::Backend* backend) { backend_.store(backend); }  // must outlive the server

  void first_token(double seconds) { first_token_.observe(seconds); }
  // Between two updates that brought `tokens` tokens: that many gaps of an equal share.
  void inter_token(double seconds, int64_t tokens = 1);
  void request_finished(const RequestReport& report);
  void exchange_finished(const FinishedRequest& finished);

  std::string print() const;
  static Route route(const std::shared_ptr<Metrics>& self, Access access);  // GET /metrics

 private:
  void print_server(std::string& out) const;
  void print_requests(std::string& out) const;

  const std::string labels_;
  const std::shared_ptr<ServerState> state_;
  std::atomic<const engine::Backend*> backend_{nullptr};
  Histogram first_token_, inter_token_, per_token_, e2e_, queue_, prefill_, decode_, inference_;
  Histogram prompt_tokens_, generated_tokens_, max_tokens_, n_, http_seconds_;
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t, std::less<>> finished_;  // by reason
  std::map<std::tuple<std::string, std::string, int>, uint64_t> exchanges_;  // by method, route and status
};

}  // namespace perigee::serve
