#include "sched/sessions.h"

#include <algorithm>
#include <limits>

namespace perigee::sched {

int32_t Sessions::enter(const std::string& name) {
  if (const auto found = by_name_.find(name); found != by_name_.end()) {
    ++entries_[static_cast<size_t>(found->second)].requests;
    return found->second;
  }
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Entry& e : entries_) {
    if (e.requests > 0) least = std::min(least, e.served);
  }
  if (by_name_.empty()) least = 0;
  if (unused_.empty()) {
    unused_.push_back(static_cast<int32_t>(entries_.size()));
    entries_.emplace_back();
  }
  const int32_t session = unused_.back();
  unused_.pop_back();
  entries_[static_cast<size_t>(session)] = {name, least, 1};
  by_name_.emplace(name, session);
  return session;
}

void Sessions::leave(int32_t session) {
  Entry& e = entries_[static_cast<size_t>(session)];
  CHECK_GT(e.requests, 0);
  if (--e.requests > 0) return;
  by_name_.erase(e.name);
  unused_.push_back(session);
}

}  // namespace perigee::sched
