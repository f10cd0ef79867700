// What    The APIs of the server as a list of routes: OpenAI's chat completions, completions and responses,
//         Anthropic's messages, token-in/token-out generation, models and the tokenizer.
// Owner   serve. `apps` makes one and gives its routes to the HTTP server.
// Threads Handlers may be called from any thread, many at a time. The Api must outlive the server's last call, and
//         the backend and the tokenizer must outlive the Api; no request of it may still run on the backend when it
//         goes.
// Errors  Bad requests are answered with 4xx here and reach no other room.
#pragma once

#include <memory>
#include <vector>

#include "serve/api_types.h"

namespace perigee::serve {

struct ApiCore;

class Api {
 public:
  Api(ApiOptions options, engine::Backend& backend, const text::Tokenizer& tokenizer);
  ~Api();
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  std::vector<ApiRoute> routes();
  // Waits until every token that the engine gave so far has been written. Not from a reply's callback.
  void settle();

 private:
  std::unique_ptr<ApiCore> core_;
};

}  // namespace perigee::serve
