// What    One HTTP exchange without the network: a request as plain values, a reply that may be whole or a stream.
// Owner   serve. serve/http makes them from sockets; the API files answer them; tests record them.
// Threads A Reply may be used from any thread; calls for one reply come one after the other.
// Errors  Writes after the peer is gone are dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace perigee::serve {

struct HttpRequest {
  std::string method;                          // "GET", "POST", ...
  std::string path;                            // without the query
  std::map<std::string, std::string> query;    // decoded
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::string id;      // X-Request-Id of the client, or one of ours
  std::string tenant;  // digest of the API key that let it in; empty without keys
  std::shared_ptr<void> held;  // what is given back when the request is forgotten
};

using Headers = std::vector<std::pair<std::string, std::string>>;

class Reply {
 public:
  virtual ~Reply() = default;
  // A whole answer.
  virtual void send(int status, std::string_view content_type, std::string body, Headers headers) = 0;
  // A stream: begin once, any number of pieces, end once. The connection stays usable afterwards.
  virtual void begin(int status, std::string_view content_type, Headers headers) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;
  // Ends the connection without the end of the stream: the reader sees that something is missing.
  virtual void abandon() = 0;
  // Called at most once, when the peer goes away before the end.
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

using Handler = std::function<void(const HttpRequest&, const std::shared_ptr<Reply>&)>;

}  // namespace perigee::serve
