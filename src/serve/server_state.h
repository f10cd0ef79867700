// What    What a server knows about itself: numbers that health and metrics read, and the facts of each finished request.
// Owner   serve. http_connection and server write; health and metrics read.
// Threads Atomics; a FinishedRequest is a value.
// Errors  None.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace perigee::serve {

struct ServerState {
  std::atomic<bool> draining{false};
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> in_flight{0};       // requests that have begun and not ended
  std::atomic<uint64_t> requests{0};       // begun since the start
  std::atomic<uint64_t> disconnects{0};    // peers that left before the end of their answer
  std::atomic<uint64_t> readers_cut{0};    // connections closed because nobody read what was written
  std::atomic<uint64_t> connections_refused{0};  // more than the limit
  std::atomic<int64_t> body_bytes{0};      // of requests from their first byte until they are forgotten
};

// A request's share of ServerState::body_bytes.
class BodyCharge {
 public:
  explicit BodyCharge(std::shared_ptr<ServerState> state) : state_(std::move(state)) {}
  BodyCharge(const BodyCharge&) = delete;
  BodyCharge& operator=(const BodyCharge&) = delete;
  ~BodyCharge() { state_->body_bytes -= bytes_; }
  // Returns the bytes of all requests.
  int64_t grow_to(int64_t bytes) {
    const int64_t more = bytes - bytes_;
    bytes_ = bytes;
    return state_->body_bytes += more;
  }

 private:
  std::shared_ptr<ServerState> state_;
  int64_t bytes_ = 0;
};

enum class ExchangeEnd {
  kDone,
  kDisconnected,  // the peer left
  kCut,           // the peer stopped reading
  kAbandoned,     // the answer was broken off on this side
};

struct FinishedRequest {
  std::string peer;    // address and port
  std::string method;
  std::string target;  // the path as it was sent, without the query
  std::string route;   // the route's path or pattern; empty: none
  std::string id;
  int status = 0;      // 499: the peer left before there was one
  uint64_t bytes = 0;  // of the answer, head included
  double seconds = 0;
  ExchangeEnd end = ExchangeEnd::kDone;
};

using OnFinished = std::function<void(const FinishedRequest&)>;

}  // namespace perigee::serve
