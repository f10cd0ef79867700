#include "serve/routes.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace perigee::serve {
namespace {

bool is_pattern(std::string_view path) { return path.find('{') != std::string_view::npos; }

// Cuts the first segment off; "/a/b" gives "a" and leaves "/b".
std::string_view cut_segment(std::string_view& path) {
  path.remove_prefix(1);
  const size_t end = std::min(path.find('/'), path.size());
  const std::string_view segment = path.substr(0, end);
  path.remove_prefix(end);
  return segment;
}

// "{name}" takes one segment, "{name+}" at the end all that are left.
bool matches(std::string_view pattern, std::string_view path) {
  if (!is_pattern(pattern)) return pattern == path;
  while (!pattern.empty() && !path.empty()) {
    if (pattern[0] != '/' || path[0] != '/') return false;
    const std::string_view wanted = cut_segment(pattern);
    if (wanted.ends_with("+}") && pattern.empty()) return path.size() > 1;
    const std::string_view given = cut_segment(path);
    if (!wanted.empty() && wanted[0] == '{' ? given.empty() : wanted != given) return false;
  }
  return pattern.empty() && path.empty();
}

}  // namespace

RouteTable::RouteTable(std::vector<Route> routes) : routes_(std::move(routes)) {
  std::stable_partition(routes_.begin(), routes_.end(), [](const Route& route) { return !is_pattern(route.path); });
  for (size_t i = 0; i < routes_.size(); ++i) {
    CHECK(routes_[i].handler != nullptr);
    for (size_t j = 0; j < i; ++j) CHECK(routes_[i].path != routes_[j].path || routes_[i].method != routes_[j].method);
  }
}

RouteTable::Match RouteTable::find(std::string_view method, std::string_view path) const {
  const bool whole = std::any_of(routes_.begin(), routes_.end(), [&](const Route& route) { return route.path == path; });
  Match match;
  const Route* get = nullptr;
  bool head = false;
  for (const Route& route : routes_) {
    if (whole ? route.path != path : !matches(route.path, path)) continue;
    if (route.method == method && match.route == nullptr) match.route = &route;
    if (route.method == "GET" && get == nullptr) get = &route;
    head = head || route.method == "HEAD";
    if (match.allow.find(route.method) == std::string::npos) match.allow += route.method + ", ";
  }
  if (match.allow.empty()) return match;
  if (method == "HEAD" && match.route == nullptr) match.route = get;
  if (get != nullptr && !head) match.allow += "HEAD, ";
  if (match.allow.find("OPTIONS") == std::string::npos) match.allow += "OPTIONS, ";
  match.allow.resize(match.allow.size() - 2);
  return match;
}

}  // namespace perigee::serve
