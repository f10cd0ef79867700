#include "sched/waiting.h"

#include <algorithm>
#include <tuple>

namespace perigee::sched {

void Waiting::add(Request& request) {
  request.waiting_at = requests_.size();
  requests_.push_back(&request);
}

void Waiting::remove(Request& request) {
  CHECK(request.waiting_at < requests_.size() && requests_[request.waiting_at] == &request);
  requests_[request.waiting_at] = requests_.back();
  requests_[request.waiting_at]->waiting_at = request.waiting_at;
  requests_.pop_back();
}

bool Waiting::later(const Place& a, const Place& b) {
  return std::tie(a.priority, a.fresh, a.served, a.arrival) > std::tie(b.priority, b.fresh, b.served, b.arrival);
}

void Waiting::start_walk(const Sessions& sessions) {
  heap_.clear();
  for (Request* r : requests_) {
    // What ran already goes by arrival alone: its turn was counted when it was admitted first.
    const int64_t served = r->preempted ? 0 : sessions.served(r->session);
    heap_.push_back({r->priority, !r->preempted, served, r->arrival, r});
  }
  std::make_heap(heap_.begin(), heap_.end(), later);
}

Request* Waiting::next(const Sessions& sessions) {
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    Place& last = heap_.back();
    const int64_t served = last.fresh ? sessions.served(last.request->session) : 0;
    if (served == last.served) {
      Request* const request = last.request;
      heap_.pop_back();
      return request;
    }
    last.served = served;
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  return nullptr;
}

}  // namespace perigee::sched
