// What    Bytes of a connection to requests, one after the other, with limits on everything that a peer may send.
// Owner   serve. http_connection feeds it.
// Threads One connection, one thread.
// Errors  kBad with an answer for the peer: 400 malformed, 413 body, 431 head. The connection cannot go on after that.
// Source  RFC 9112; Boost.Beast's parser. Ambiguous framing (two lengths, a length and chunks, an unknown transfer coding) is
//         refused, because a proxy in front might cut the bytes elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "serve/errors.h"
#include "serve/exchange.h"

namespace perigee::serve {

struct IntakeLimits {
  size_t head_bytes_max = 65536;  // request line and headers together
  int headers_max = 128;
  uint64_t body_bytes_max = uint64_t{64} << 20;
};

class Intake {
 public:
  explicit Intake(const IntakeLimits& limits);
  ~Intake();

  enum class State {
    kIdle,  // between requests
    kHead,  // in the request line or headers
    kBody,  // the headers are known: request() may be looked at, all but its body
    kDone,  // request() is whole
    kBad,   // error() says why
  };
  State state() const { return state_; }

  // Returns how many bytes were used; the others must come again, in front of new ones. Stops once at the end of the headers, so
  // that the caller can refuse a body before it comes; call again, with nothing new if need be.
  size_t feed(std::string_view bytes);
  void reset();  // for the next request

  HttpRequest& request() { return request_; }
  const ApiError& error() const { return error_; }
  const std::string& raw_path() const { return raw_path_; }  // as sent, without the query
  bool received() const;  // kBody: the body is here as well
  bool has_body() const { return has_body_; }
  bool http_1_0() const { return http_1_0_; }
  bool keep_alive() const { return keep_alive_; }
  bool expects_continue() const { return expects_continue_; }
  uint64_t body_bytes() const { return body_bytes_; }  // used so far

 private:
  struct Parser;
  void fail(int status, std::string message);
  void read_head();
  bool read_headers();

  const IntakeLimits limits_;
  State state_ = State::kIdle;
  std::unique_ptr<Parser> parser_;  // none while idle: thousands of idle connections should cost little
  HttpRequest request_;
  ApiError error_;
  std::string raw_path_;
  bool has_body_ = false;
  bool http_1_0_ = false;
  bool keep_alive_ = false;
  bool expects_continue_ = false;
  uint64_t body_bytes_ = 0;
};

}  // namespace perigee::serve
