// What    Errors as clients see them: an HTTP status and the body {"error":{"message","type","param","code"}}.
// Owner   serve.
// Threads Value types and pure functions.
// Errors  None.
// Source  The error object of OpenAI's API; `code` is the status as a number unless a word says more.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "serve/exchange.h"

namespace perigee::serve {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param = {};  // the field to blame; empty: null
  std::string code = {};   // a word such as "context_length_exceeded"; empty: the status as a number
};

// What went wrong inside, as a status: bad or too large values 400, unknown names 404, no room 503, the rest 500. Who knows
// that the queue which --max-num-waiting limits is full makes it 429; 503 means loading, draining or too many requests
// that wait to be read.
ApiError api_error(const Error& error, std::string param = {});

// "invalid_request_error", "authentication_error", "not_found_error", "server_error", ...
std::string_view error_type(int status);

// The whole body, and the inner object alone (for an error inside a stream).
std::string error_body(const ApiError& error);
std::string error_object(const ApiError& error);

// When to come again, for the statuses that mean "later": 503 and 429.
Headers retry_headers(int status);

// Answers with the error's status and body; 503 and 429 carry Retry-After.
void send_error(Reply& reply, const ApiError& error, Headers headers = {});

// A text between quotation marks. Bytes that are not UTF-8 become U+FFFD, so the result always is JSON.
std::string json_quoted(std::string_view text);

}  // namespace perigee::serve
