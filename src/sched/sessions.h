// What    Fair shares: how many tokens each session has been served, so that sessions take turns instead of requests.
// Owner   sched.
// Threads One at a time.
// Errors  Misuse is a bug and aborts.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/check.h"

namespace perigee::sched {

class Sessions {
 public:
  // A request of the session arrives. A session without requests starts at the least that any active one was served:
  // it neither pays for its past nor saves up turns while it is away.
  int32_t enter(const std::string& name);
  void leave(int32_t session);

  void serve(int32_t session, int64_t tokens) { entries_[static_cast<size_t>(session)].served += tokens; }
  int64_t served(int32_t session) const { return entries_[static_cast<size_t>(session)].served; }
  int64_t active() const { return static_cast<int64_t>(by_name_.size()); }

 private:
  struct Entry {
    std::string name;
    int64_t served = 0;
    int64_t requests = 0;
  };
  std::vector<Entry> entries_;
  std::vector<int32_t> unused_;
  std::unordered_map<std::string, int32_t> by_name_;
};

}  // namespace perigee::sched
