// What    Requests to another HTTP server, one connection each, waited for; answers may be streams of events.
// Owner   serve, the client's side.
// Threads One request at a time. `cancel` may become readable at any time, by a signal handler too.
// Errors  One sentence that names the server: an address that is none, an unknown host, a refused connection, a certificate that
//         is not trusted, an answer that is no HTTP, is cut off or was cancelled. Every HTTP status is an answer.
// Source  RFC 3986, RFC 9112; Boost.Beast's parser, sockets and TLS as in channel.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "serve/channel.h"
#include "serve/exchange.h"

namespace perigee::serve {

struct Url {
  bool tls = false;
  std::string host;  // of an IPv6 address without its brackets
  int port = 0;
  std::string path;  // begins with a slash or is empty; never ends with one

  // As it stands in the header Host: the port only if it is not the scheme's own.
  std::string authority() const;
  std::string text() const;
};

// http:// or https://, a host, and perhaps a port and a path. `what` names the flag.
Result<Url> parse_url(std::string_view text, std::string_view what);

struct ClientRequest {
  std::string method = "GET";
  std::string path;  // after the URL's own
  Headers headers;
  std::string body;  // JSON; empty: none
};

struct ClientReply {
  int status = 0;
  std::string content_type;  // the media type alone
  std::string location;
  std::string body;
  bool streamed = false;  // the body went to the caller piece by piece
};

class HttpClient {
 public:
  // `ca_file`: PEM with authorities to trust besides the system's; empty: none.
  static Result<HttpClient> create(Url url, const std::string& ca_file);

  // Takes a piece of a stream of events; false: that is enough, the connection may be closed.
  using OnPiece = std::function<bool(std::string_view)>;

  // The body of a 200 that is a stream of events goes to on_piece, every other body into the reply. `cancel` is a descriptor
  // that becomes readable when nobody wants the answer any more (-1: none); the server sees the connection close.
  Result<ClientReply> send(const ClientRequest& request, const OnPiece& on_piece, int cancel) const;

  const Url& url() const { return url_; }

 private:
  HttpClient(Url url, std::shared_ptr<TlsContext> tls) : url_(std::move(url)), tls_(std::move(tls)) {}

  Url url_;
  std::shared_ptr<TlsContext> tls_;  // none: in the clear
};

}  // namespace perigee::serve
