// What    Which handler answers which method and path, who may call it, and on which thread it runs.
// Owner   serve.
// Threads A RouteTable is constant once made.
// Errors  Two routes for the same method and path are a bug.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/exchange.h"

namespace perigee::serve {

enum class Access {
  kKey,   // whoever holds a key, if the server has any: the default
  kOpen,  // everybody: health and the like
};

enum class Where {
  kWorker,  // the worker pool: whatever reads a body, because a long prompt takes its time
  kInline,  // the thread that reads sockets: microseconds only
};

struct Route {
  std::string method;
  std::string path;  // a segment in braces, as in "/v1/responses/{id}", stands for any one segment, {id+} at the end for all
  Handler handler;
  Access access = Access::kKey;
  Where where = Where::kWorker;
};

class RouteTable {
 public:
  explicit RouteTable(std::vector<Route> routes);

  struct Match {
    const Route* route = nullptr;  // none: 404, or 405 if `allow` says something
    std::string allow;             // methods of the path: "GET, HEAD, OPTIONS"; empty: no such path
  };
  // Paths in full come before patterns. HEAD finds the route of GET.
  Match find(std::string_view method, std::string_view path) const;

 private:
  std::vector<Route> routes_;
};

}  // namespace perigee::serve
