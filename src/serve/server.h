// What    The HTTP server below the API: listeners, threads, time limits, keys, TLS, access log, drain.
//
//           client listener   the routes; every one needs a key (if there are keys) unless it says otherwise
//           admin listener    other routes, with a key of its own; only if asked for, on the loopback interface unless told
//
//         I/O threads move bytes and never wait; handlers run on a worker pool. An answer may be made on any thread.
// Owner   serve.
// Threads create(), start(), open(), drain() and stop() from one thread.
// Errors  create() names the flag to blame. A connection's trouble stays its own.
// Source  RFC 9110, RFC 9112; limits against slow and oversized senders as in the advisories about other servers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "serve/cors.h"
#include "serve/log.h"
#include "serve/routes.h"
#include "serve/server_state.h"
#include "serve/site.h"

namespace perigee::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one
  std::vector<std::string> api_keys;  // none: everybody may call

  std::string admin_host = "127.0.0.1";
  std::optional<int> admin_port;  // none: no admin listener
  std::string admin_key;

  std::string tls_certificate;  // PEM files; empty: in the clear
  std::string tls_key;

  HttpLimits limits;
  CorsOptions cors;
  int io_threads = 1;
  int worker_threads = 2;
  int64_t worker_queue_max = 16384;  // requests that wait for a worker; more are answered with 503
  int64_t connections_max = 16384;   // of both listeners; lowered to what the limit on open files allows

  bool access_log = true;
  std::vector<std::string> access_log_without;  // paths
  LogSink log;             // none: no log at all
  OnFinished on_finished;  // of each request, on an I/O thread: for metrics
  bool loading = false;    // until open()
  std::shared_ptr<ServerState> state = std::make_shared<ServerState>();
};

class Server {
 public:
  // Listens, but answers nobody before start(): connections wait. With options.loading, `routes` are what answers while a model
  // loads, on both listeners nothing else does (503), and open() brings the routes of afterwards.
  static Result<std::unique_ptr<Server>> create(ServerOptions options, std::vector<Route> routes,
                                                std::vector<Route> admin_routes = {});
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();  // stops

  int port() const;
  std::optional<int> admin_port() const;

  void start();
  void open(std::vector<Route> routes, std::vector<Route> admin_routes);
  // Takes no new client connections, closes idle ones, lets the others finish their request for at most `limit_s`, then breaks
  // them off. Returns how many were broken off. The admin listener goes on until stop(), so that one can watch.
  int64_t drain(double limit_s);
  void stop();  // breaks everything off; may be called again

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// One line of the access log, without query, body or key.
std::string access_line(const FinishedRequest& finished);

}  // namespace perigee::serve
