// What    What all connections of one listener share: limits, routes, keys, and where their work goes.
// Owner   serve. server.cc makes one for clients and one for administration.
// Threads Constant while connections exist, except for the atomics and, while `loading`, the routes.
// Errors  judge() returns the answer for requests that no handler should see.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "serve/auth.h"
#include "serve/channel.h"
#include "serve/cors.h"
#include "serve/errors.h"
#include "serve/http_intake.h"
#include "serve/log.h"
#include "serve/routes.h"
#include "serve/server_state.h"

namespace perigee::serve {

struct HttpLimits {
  IntakeLimits intake;
  double keep_alive_s = 900;     // an idle connection is kept; agents think for minutes between requests
  int64_t bodies_bytes_max = int64_t{1} << 30;  // of all requests together, until they are read: more are refused
  double header_time_s = 30;     // from the first byte of a request to the end of its headers
  double body_bytes_per_s = 16384;  // a slower body, on average after header_time_s, is given up
  double write_stall_s = 120;    // nothing at all read by the peer for so long: it is cut
  double linger_s = 2;           // after the last answer, for the peer to read it
  double sse_keep_alive_s = 0;   // a comment line in a stream of events that is silent for so long; 0: none
  size_t stream_queue_bytes = size_t{1} << 20;  // of a stream, written and not taken by the network: more cuts the reader
  size_t pipelined_bytes_max = 65536;  // requests sent ahead of answers; while more wait, the connection is not read
};

struct Site {
  HttpLimits limits;
  RouteTable routes{{}};
  RouteTable loading_routes{{}};  // what answers while `loading`; everything else is refused then
  KeyRing keys;
  CorsOptions cors;
  std::shared_ptr<TlsContext> tls;      // none: in the clear
  std::shared_ptr<ServerState> state;
  std::shared_ptr<std::atomic<bool>> draining = std::make_shared<std::atomic<bool>>(false);
  std::atomic<int64_t> connections{0};
  std::atomic<bool> loading{false};  // `routes` are read only after it was false
  std::function<bool(std::function<void()>)> run_later;  // on the worker pool; false: too much waits there
  OnFinished on_finished;
  LogSink log;

  struct Verdict {
    const Route* route = nullptr;   // its handler answers
    std::optional<ApiError> error;  // or this is the answer
    Headers headers;                // of the error, or of the answer to a preflight or OPTIONS, which has neither
  };
  // Looks at all but the body; sets the request's tenant.
  Verdict judge(HttpRequest& request, bool has_body) const;
};

}  // namespace perigee::serve
