// What    Which web pages of other origins may call the server from a browser.
// Owner   serve.
// Threads Pure.
// Errors  None: an origin that is not allowed gets no permission headers, and its browser refuses.
// Source  The Fetch standard, "CORS protocol".
#pragma once

#include <map>
#include <string>
#include <vector>

#include "serve/exchange.h"

namespace perigee::serve {

struct CorsOptions {
  std::vector<std::string> origins;         // "*": all; empty: none, and OPTIONS is a method like others
  std::vector<std::string> methods = {"*"};
  std::vector<std::string> headers = {"*"};
};

// The question that a browser asks before the real request, without a key.
bool is_preflight(const CorsOptions& options, const HttpRequest& request);
Headers preflight_headers(const CorsOptions& options, const HttpRequest& request);

// What to add to the answer of any request.
Headers cors_headers(const CorsOptions& options, const HttpRequest& request);

}  // namespace perigee::serve
