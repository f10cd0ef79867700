#include "serve/cors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace perigee::serve {
namespace {

constexpr const char* kMaxAge_s = "600";  // how long a browser may remember the permission
constexpr const char* kRequestMethod = "access-control-request-method";
constexpr const char* kRequestHeaders = "access-control-request-headers";

bool holds(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::string header(const HttpRequest& request, const char* name) {
  const auto it = request.headers.find(name);
  return it == request.headers.end() ? std::string() : it->second;
}

// "*" does not cover Authorization, so whatever the browser asks for is named in return.
std::string granted(const std::vector<std::string>& allowed, const std::string& asked) {
  return holds(allowed, "*") ? asked : fmt::format("{}", fmt::join(allowed, ", "));
}

}  // namespace

bool is_preflight(const CorsOptions& options, const HttpRequest& request) {
  return !options.origins.empty() && request.method == "OPTIONS" && request.headers.contains("origin") &&
         request.headers.contains(kRequestMethod);
}

Headers cors_headers(const CorsOptions& options, const HttpRequest& request) {
  if (options.origins.empty()) return {};
  const std::string origin = header(request, "origin");
  const bool all = holds(options.origins, "*");
  Headers result;
  if (!all) result.emplace_back("Vary", "Origin");
  if (origin.empty() || (!all && !holds(options.origins, origin))) return result;
  result.emplace_back("Access-Control-Allow-Origin", all ? "*" : origin);
  result.emplace_back("Access-Control-Expose-Headers", "X-Request-Id");
  return result;
}

Headers preflight_headers(const CorsOptions& options, const HttpRequest& request) {
  Headers result = {
      {"Access-Control-Allow-Methods", granted(options.methods, header(request, kRequestMethod))},
      {"Access-Control-Max-Age", kMaxAge_s},
  };
  const std::string asked = header(request, kRequestHeaders);
  if (!asked.empty()) result.emplace_back("Access-Control-Allow-Headers", granted(options.headers, asked));
  return result;
}

}  // namespace perigee::serve
