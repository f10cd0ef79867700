// What    Bytes in and out of a non-blocking socket, in the clear or through TLS, behind one pair of calls.
// Owner   serve. A Channel does not own its socket.
// Threads A TlsContext may be shared; a Channel belongs to one thread.
// Errors  load() and trusting() name the flag of a file that cannot be used. A broken connection is kFailed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

struct ssl_st;      // OpenSSL's
struct ssl_ctx_st;

namespace perigee::serve {

class TlsContext {
 public:
  // A server certificate with its chain, and its key, both PEM. TLS 1.2 or later.
  static Result<std::shared_ptr<TlsContext>> load(const std::string& certificate, const std::string& key);
  // A client that trusts the system's authorities and those of a PEM file (empty: none). TLS 1.2 or later.
  static Result<std::shared_ptr<TlsContext>> trusting(const std::string& ca_file);
  ssl_ctx_st* get() const { return context_.get(); }

 private:
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  std::unique_ptr<ssl_ctx_st, Free> context_;
};

class Channel {
 public:
  // Without a context: in the clear. The handshake happens inside the first reads. A write to a closed socket raises SIGPIPE
  // inside OpenSSL, so a process that uses TLS must ignore it.
  Channel(int socket, const TlsContext* tls);
  // The client's side: the peer's certificate must be good for `host`, a name or an address.
  Channel(int socket, const TlsContext* tls, const std::string& host);

  enum class State {
    kDone,       // `bytes` were moved
    kWantRead,   // nothing was moved: again when the socket is readable
    kWantWrite,  // the same, writable
    kEnd,        // the peer closed its side
    kFailed,
  };
  struct Outcome {
    State state = State::kFailed;
    size_t bytes = 0;
  };
  Outcome read(std::span<char> into);
  // Writes from `pieces`, the first one from `offset` on.
  Outcome write(const std::vector<std::string>& pieces, size_t first, size_t offset);

  bool secure() const { return tls_ != nullptr; }
  bool handshake_done() const;
  // After kFailed and before any other call of OpenSSL: what TLS did not like; empty when the connection itself broke.
  std::string tls_failure() const;
  // Says goodbye in TLS, so that the peer knows that nothing was cut off.
  void say_end();

 private:
  struct Free {
    void operator()(ssl_st* tls) const;
  };
  Outcome tls_outcome(int result);

  int socket_;
  std::unique_ptr<ssl_st, Free> tls_;
};

}  // namespace perigee::serve
