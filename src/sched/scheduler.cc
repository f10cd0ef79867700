#include "sched/scheduler.h"

#include <algorithm>

namespace perigee::sched {

Result<std::unique_ptr<Scheduler>> Scheduler::create(const SchedulerLimits& limits, const cache::CacheOptions& cache,
                                                     int64_t snapshot_interval) {
  if (const Status s = cache::Cache::check(cache); !s.ok()) return s.error();
  if (limits.max_num_seqs < 1)
    return invalid_argument("--max-num-seqs is {}, at least 1 is needed", limits.max_num_seqs);
  if (limits.max_num_batched_tokens < limits.max_num_seqs) {
    return invalid_argument(
        "--max-num-batched-tokens is {}, at least --max-num-seqs ({}) is needed: every running request gets a token a "
        "step",
        limits.max_num_batched_tokens, limits.max_num_seqs);
  }
  if (limits.max_model_len < 2)
    return invalid_argument("--max-model-len is {}, at least 2 is needed", limits.max_model_len);
  if (limits.waiting_max < 1)
    return invalid_argument("the longest queue is {}, at least 1 request must be able to wait", limits.waiting_max);
  if (snapshot_interval < kSnapshotIntervalAuto ||
      (snapshot_interval > 0 && snapshot_interval % cache.match_unit != 0)) {
    return invalid_argument("the snapshot interval is {}, 0 or a multiple of --prefix-match-unit ({}) is needed",
                            snapshot_interval, cache.match_unit);
  }
  return std::unique_ptr<Scheduler>(new Scheduler(limits, cache, snapshot_interval));
}

Scheduler::Scheduler(const SchedulerLimits& limits, const cache::CacheOptions& cache, int64_t snapshot_interval)
    : limits_(limits), cache_(cache), snapshot_interval_(snapshot_interval) {
  if (snapshot_interval_ == kSnapshotIntervalAuto) {
    // A snapshot takes `groups` rows, so a prompt of that many blocks pays a sixteenth for it.
    constexpr int64_t kIntervalMin = 4096;
    snapshot_interval_ = std::max(kIntervalMin, 16 * cache.groups * cache.block_tokens);
  }
  slots_.resize(static_cast<size_t>(limits.max_num_seqs));
  for (int64_t slot = limits.max_num_seqs; slot-- > 0;) free_slots_.push_back(static_cast<int32_t>(slot));
}

Status Scheduler::submit(ScheduleRequest request) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (contains(request.id)) return invalid_argument("request id {} is in use", request.id);
  if (prompt == 0) return invalid_argument("prompt is empty, at least one token is needed");
  if (request.max_tokens < 1) return invalid_argument("max_tokens is {}, at least 1 is needed", request.max_tokens);
  if (prompt >= limits_.max_model_len || request.max_tokens > limits_.max_model_len - prompt) {
    return out_of_range("the prompt's {} tokens and max_tokens {} are more than the context of {} (--max-model-len)",
                        prompt, request.max_tokens, limits_.max_model_len);
  }
  const int64_t rows = cache_.blocks(prompt + request.max_tokens - 1) + cache_.options().groups;
  if (rows > cache_.options().rows) {
    return out_of_range(
        "the prompt's {} tokens and max_tokens {} need {} cache rows, there are {}: ask for fewer tokens or give the "
        "cache more memory",
        prompt, request.max_tokens, rows, cache_.options().rows);
  }
  if (draining_) return resource_exhausted("the server is shutting down and takes no new requests");
  if (waiting_.size() >= limits_.waiting_max) {
    return resource_exhausted("{} requests are waiting, which is the most allowed: try again later", waiting_.size());
  }
  auto r = std::make_unique<Request>(cache::namespace_key(request.salt, request.adapter), cache_.options().match_unit);
  r->id = request.id;
  r->ids = std::move(request.prompt);
  r->prompt = prompt;
  r->max_tokens = request.max_tokens;
  r->priority = request.priority;
  r->arrival = arrivals_++;
  r->skip_prefix = request.skip_prefix;
  r->session = sessions_.enter(request.session);
  waiting_.add(*r);
  requests_.emplace(request.id, std::move(r));
  return {};
}

const Request& Scheduler::at(RequestId id) const {
  const auto found = requests_.find(id);
  CHECK(found != requests_.end());
  return *found->second;
}

void Scheduler::cancel(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& r = *found->second;
  if (r.slot != kNoSlot && planned_) {
    end_at_commit(r);  // the step may still write its rows
    return;
  }
  if (r.slot == kNoSlot) {
    waiting_.remove(r);
  } else {
    stop_running(r);
  }
  end(r);
}

void Scheduler::set_drafts(RequestId id, int32_t drafts) {
  CHECK(drafts >= 0 && drafts < Outcome::kTokensMax);
  if (const auto found = requests_.find(id); found != requests_.end()) found->second->drafts = drafts;
}

// The rows of a running request become cached or free.
void Scheduler::stop_running(Request& r) {
  cache_.release(r.chain, r.length, r.state_known, r.memory);
  slots_[static_cast<size_t>(r.slot)] = nullptr;
  free_slots_.push_back(r.slot);
  r.slot = kNoSlot;
  order_.erase(std::find(order_.begin(), order_.end(), &r));
}

void Scheduler::end(Request& r) {
  sessions_.leave(r.session);
  requests_.erase(r.id);
}

void Scheduler::commit(const StepPlan& plan, std::span<const Outcome> outcomes) {
  CHECK(planned_ || plan.empty());
  CHECK_EQ(plan.parts.size(), plan_.parts.size());
  if (!planned_) return;
  planned_ = false;
  size_t next = 0;
  for (const PlanPart& part : plan.parts) {
    Request& r = *slots_[static_cast<size_t>(part.slot)];
    CHECK_EQ(r.id, part.request);
    const Outcome* outcome = nullptr;
    if (next < outcomes.size() && outcomes[next].request == part.request) {
      outcome = &outcomes[next++];
    } else if (part.sample) {
      const auto found =
          std::find_if(outcomes.begin(), outcomes.end(), [&](const Outcome& o) { return o.request == part.request; });
      if (found != outcomes.end()) outcome = &*found;
    }
    advance(r, part, outcome);
  }
  cache_.end_step();
  for (Request* r : ending_) {
    stop_running(*r);
    end(*r);
  }
  ending_.clear();
}

void Scheduler::end_at_commit(Request& r) {
  if (!r.ending) ending_.push_back(&r);
  r.ending = true;
}

// A part of the step has run: the ids and the length grow, complete units can be found from now on.
void Scheduler::advance(Request& r, const PlanPart& part, const Outcome* outcome) {
  const int64_t known = std::min(part.tokens, r.known() - part.position);
  int64_t accepted = part.tokens;
  if (outcome != nullptr) {
    if (outcome->accepted != Outcome::kAll) accepted = outcome->accepted;
    CHECK(accepted >= known && accepted <= part.tokens);
    CHECK(part.sample || outcome->count == 0);
    const std::span<const int32_t> ids = outcome->ids();
    r.ids.insert(r.ids.end(), ids.begin(), ids.end());
    if (outcome->finished) end_at_commit(r);
  } else {
    CHECK(!part.sample || r.ending);
    accepted = known;
    r.state_known = known == part.tokens;  // of drafts, nobody says how many counted
  }
  r.length += accepted;
  CHECK_LE(r.length, r.known());
  CHECK(r.ending || (r.length < r.known() && r.known() < r.prompt + r.max_tokens));
  if (!r.prefilling) sessions_.serve(r.session, accepted);  // a prompt is counted when it is admitted
  if (part.sample) r.prefilling = false;
  r.chain.extend(r.ids, r.length);
  cache_.index(r.chain, r.length, r.memory);
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats s = stats_;
  s.rows = cache_.stats();
  s.running = running();
  s.waiting = waiting();
  s.held_back =
      std::count_if(waiting_.all().begin(), waiting_.all().end(), [&](const Request* r) { return held_back(*r); });
  return s;
}

Status Scheduler::audit() const {
  const auto fault = [](const Request& r, const char* what) {
    return Error{ErrorCode::kInternal, fmt::format("request {}: {}", r.id, what)};
  };
  std::vector<const cache::Holding*> holdings;
  for (const Request* r : order_) {
    holdings.push_back(&r->memory);
    if (r->slot == kNoSlot || slots_[static_cast<size_t>(r->slot)] != r) return fault(*r, "its slot is another's");
    if (r->length > r->known()) return fault(*r, "more tokens went through the model than are known");
    if (static_cast<int64_t>(r->memory.blocks.size()) < cache_.blocks(r->length)) return fault(*r, "rows are missing");
    if (static_cast<int64_t>(r->memory.states.size()) != cache_.options().groups)
      return fault(*r, "state rows are missing");
  }
  for (const Request* r : waiting_.all()) {
    if (r->slot != kNoSlot || r->length != 0 || !r->memory.blocks.empty() || !r->memory.states.empty())
      return fault(*r, "it waits and has a length, rows or a slot");
  }
  if (!std::is_sorted(order_.begin(), order_.end(), [](const Request* a, const Request* b) { return a->before(*b); })) {
    return Error{ErrorCode::kInternal, "the running requests are out of order"};
  }
  if (order_.size() + static_cast<size_t>(waiting_.size()) != requests_.size() ||
      order_.size() + free_slots_.size() != slots_.size()) {
    return Error{ErrorCode::kInternal,
                 fmt::format("{} run, {} wait, {} slots are free: {} requests and {} slots are known", order_.size(),
                             waiting_.size(), free_slots_.size(), requests_.size(), slots_.size())};
  }
  return cache_.audit(holdings);
}

}  // namespace perigee::sched
