#include "serve/site.h"

#include <fmt/format.h>

#include "serve/http_text.h"

namespace perigee::serve {
namespace {

Site::Verdict refusal(int status, std::string message, Headers headers = {}) {
  return {nullptr, ApiError{status, std::move(message)}, std::move(headers)};
}

}  // namespace

Site::Verdict Site::judge(HttpRequest& request, bool has_body) const {
  if (is_preflight(cors, request)) return {nullptr, std::nullopt, preflight_headers(cors, request)};
  const bool is_loading = loading.load();
  const RouteTable::Match match = (is_loading ? loading_routes : routes).find(request.method, request.path);
  if (match.route == nullptr || match.route->access == Access::kKey) {
    // Before 404 and 405: without a key nobody learns what is there.
    const auto tenant = keys.admit(request.headers);
    if (!tenant)
      return refusal(401, "a valid API key is needed: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                     {{"WWW-Authenticate", "Bearer"}});
    request.tenant = *tenant;
  }
  if (is_loading && match.allow.empty()) return refusal(503, "the model is loading; try again later");
  if (match.route == nullptr && match.allow.empty()) return refusal(404, fmt::format("there is no '{}' here", request.path));
  if (match.route == nullptr && request.method == "OPTIONS") return {nullptr, std::nullopt, {{"Allow", match.allow}}};
  if (match.route == nullptr)
    return refusal(405, fmt::format("'{}' takes {}", request.path, match.allow), {{"Allow", match.allow}});
  if (has_body) {
    const auto type = request.headers.find("content-type");
    // A browser sends other types to any server without asking; JSON it asks for first.
    if (type == request.headers.end() || media_type(type->second) != "application/json")
      return refusal(415, "the header Content-Type must be 'application/json'");
    const auto coding = request.headers.find("content-encoding");
    if (coding != request.headers.end() && !equal_ignoring_case(coding->second, "identity"))
      return refusal(415, "the header Content-Encoding must be absent: compressed bodies are not taken");
  }
  return {match.route, std::nullopt, {}};
}

}  // namespace perigee::serve
