// What    The requests that wait, and the order in which they are looked at: priority, then those that ran already, then
//         the session that was served least, then arrival.
// Owner   sched.
// Threads One at a time.
// Errors  Misuse is a bug and aborts.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/request.h"
#include "sched/sessions.h"

namespace perigee::sched {

class Waiting {
 public:
  int64_t size() const { return static_cast<int64_t>(requests_.size()); }
  bool empty() const { return requests_.empty(); }
  const std::vector<Request*>& all() const { return requests_; }

  void add(Request& request);
  void remove(Request& request);

  // One walk over those that wait now, in order; what is served meanwhile moves its session back. Requests may be
  // removed during the walk once they have been visited.
  void start_walk(const Sessions& sessions);
  Request* next(const Sessions& sessions);  // null at the end

 private:
  struct Place {
    int64_t priority;
    bool fresh;  // never ran
    int64_t served;
    uint64_t arrival;
    Request* request;
  };
  static bool later(const Place& a, const Place& b);

  std::vector<Request*> requests_;
  std::vector<Place> heap_;
};

}  // namespace perigee::sched
