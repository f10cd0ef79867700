#include "serve/errors.h"

#include <fmt/format.h>

#include <utility>

#include "text/json.h"
#include "text/utf8.h"

namespace perigee::serve {
namespace {

constexpr const char* kRetryAfter_s = "1";

}  // namespace

ApiError api_error(const Error& error, std::string param) {
  ApiError result;
  result.message = error.message;
  result.param = std::move(param);
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kOutOfRange:
      result.status = 400;
      break;
    case ErrorCode::kNotFound:
      result.status = 404;
      break;
    case ErrorCode::kResourceExhausted:
      result.status = 503;
      break;
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      result.status = 500;
      break;
  }
  return result;
}

std::string_view error_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string json_quoted(std::string_view text) {
  std::string result = "\"";
  text::append_json_escaped(text::is_valid_utf8(text) ? std::string(text) : text::replace_invalid_utf8(text), result);
  return result + '"';
}

std::string error_object(const ApiError& error) {
  return fmt::format(R"({{"message":{},"type":"{}","param":{},"code":{}}})", json_quoted(error.message),
                     error_type(error.status), error.param.empty() ? "null" : json_quoted(error.param),
                     error.code.empty() ? std::to_string(error.status) : json_quoted(error.code));
}

std::string error_body(const ApiError& error) { return fmt::format(R"({{"error":{}}})", error_object(error)); }

Headers retry_headers(int status) {
  if (status != 503 && status != 429) return {};
  return {{"Retry-After", kRetryAfter_s}};
}

void send_error(Reply& reply, const ApiError& error, Headers headers) {
  for (auto& header : retry_headers(error.status)) headers.push_back(std::move(header));
  reply.send(error.status, "application/json", error_body(error), std::move(headers));
}

}  // namespace perigee::serve
