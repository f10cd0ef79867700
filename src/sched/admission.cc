#include <algorithm>
#include <limits>

#include "sched/scheduler.h"

namespace perigee::sched {
namespace {

constexpr int64_t kCandidatesMax = 32;                // looked at in one step: each costs a walk through the index
constexpr int32_t kOvertakesMax = 64;                 // then nothing overtakes any more
constexpr int64_t kSharedTokensMin = 64;              // a shorter common prefix is not worth waiting for
constexpr int64_t kHashTokensMax = int64_t{1} << 18;  // hashed in one step before it is left for the next: about 2 ms

}  // namespace

// The prompts under way and the step's room for them.
struct Scheduler::Load {
  int64_t budget = 0;
  int64_t wanted = 0;                                      // tokens that the prompts under way can take in this step
  int64_t shortest = std::numeric_limits<int64_t>::max();  // what the shortest of them still needs
  int64_t priority = std::numeric_limits<int64_t>::max();  // the best of theirs
  int64_t hashed = 0;                                      // tokens, in this step

  void add(const Request& r, int64_t chunk) {
    wanted += chunk;
    shortest = std::min(shortest, r.known() - r.length);
    priority = std::min(priority, r.priority);
  }
};

void Scheduler::admit(int64_t budget) {
  const bool rows = order_.empty() || cache_.available() > cache_.options().groups;
  if (free_slots_.empty() || waiting_.empty() || budget == 0 || !rows) return;
  Load load;
  load.budget = budget;
  for (const Request* r : order_) {
    if (r->prefilling) load.add(*r, chunk_end(*r) - r->length);
  }
  passed_over_.clear();
  waiting_.start_walk(sessions_);
  for (int64_t looked_at = 0; looked_at < kCandidatesMax && !free_slots_.empty() && load.hashed < kHashTokensMax;) {
    Request* const r = waiting_.next(sessions_);
    if (r == nullptr) return;
    if (held_back(*r)) continue;
    ++looked_at;
    switch (try_admit(*r, load)) {
      case Admission::kHeldBack:
        continue;
      case Admission::kAdmitted:
        for (Request* passed : passed_over_) ++passed->overtaken;
        continue;
      case Admission::kRefused:
        break;
    }
    if (r->preempted || r->overtaken >= kOvertakesMax) return;
    passed_over_.push_back(r);
  }
}

Scheduler::Admission Scheduler::try_admit(Request& r, Load& load) {
  const int64_t hashed = r.chain.units();
  r.chain.extend(r.ids, r.known());
  load.hashed += (r.chain.units() - hashed) * r.chain.unit();
  cache::Match match;
  if (!r.skip_prefix) {
    match = cache_.match(r.chain, r.known() - 1);
    if (follow(r, match.resume)) return Admission::kHeldBack;
  }
  if (!welcome(r, r.known() - match.resume, load)) return Admission::kRefused;

  // Alone, everything that is not its own can be evicted; beside others, each of them may soon need another row.
  const int64_t room = cache_.available() - (order_.empty() ? 0 : rows_promised() + running());
  const auto fits = [&](cache::ResumeMode mode) {
    const cache::ResumeCost cost = cache_.resume_cost(match, mode);
    const int64_t grown = rows_wanted(r) - cache_.blocks(match.resume);
    return cost.pinned + cost.fresh + grown <= room;
  };
  cache::ResumeMode mode = cache::ResumeMode::kKeep;
  if (!fits(mode)) {
    mode = cache::ResumeMode::kConsume;
    if (!(order_.empty() || r.preempted) || !fits(mode)) return Admission::kRefused;
  }
  start(r, match, mode);
  load.add(r, chunk_end(r) - r.length);
  return Admission::kAdmitted;
}

// Prompts under way that can use up the budget are left alone, unless the new one is better, or so much shorter that it
// should not wait, or ran before.
bool Scheduler::welcome(const Request& r, int64_t remaining, const Load& load) const {
  if (load.wanted < load.budget || r.preempted || r.priority < load.priority) return true;
  return r.priority == load.priority && remaining <= load.shortest / 2;
}

// Does it still wait for a running request to compute what they share?
bool Scheduler::held_back(const Request& r) const {
  if (r.leader_slot == kNoSlot) return false;
  const Request* const leader = slots_[static_cast<size_t>(r.leader_slot)];
  return leader != nullptr && leader->id == r.leader && leader->prefilling && leader->state_position() < r.leader_until;
}

// When a prompt under way is about to compute more of this one than the cache has: leave a snapshot where they part,
// and wait for it. Never for one of a worse priority.
bool Scheduler::follow(Request& r, int64_t resume) {
  r.leader_slot = kNoSlot;
  const int64_t unit = r.chain.unit();
  const int64_t last = (r.known() - 1) / unit * unit;
  Request* leader = nullptr;
  int64_t until = resume + kSharedTokensMin - 1;
  for (Request* other : order_) {
    if (!other->prefilling || other->priority > r.priority) continue;
    const int64_t shared = std::min(cache::common_units(r.chain, other->chain) * unit, last);
    if (shared <= until || shared <= other->state_position()) continue;
    until = shared;
    leader = other;
  }
  if (leader == nullptr) return false;
  const auto place = std::lower_bound(leader->junctions.begin(), leader->junctions.end(), until);
  if (place == leader->junctions.end() || *place != until) leader->junctions.insert(place, until);
  r.leader_slot = leader->slot;
  r.leader = leader->id;
  r.leader_until = until;
  return true;
}

// Rows for the ids it has and one block of new ones.
int64_t Scheduler::rows_wanted(const Request& r) const {
  return std::min(cache_.blocks(r.known()) + 1, cache_.blocks(r.prompt + r.max_tokens - 1));
}

int64_t Scheduler::rows_promised() const {
  int64_t rows = 0;
  for (const Request* r : order_) {
    if (r->prefilling) rows += std::max<int64_t>(0, rows_wanted(*r) - static_cast<int64_t>(r->memory.blocks.size()));
  }
  return rows;
}

void Scheduler::start(Request& r, const cache::Match& match, cache::ResumeMode mode) {
  waiting_.remove(r);
  const cache::Resumed resumed = cache_.resume(match, mode, r.memory);
  if (resumed.block_from != cache::kNoRow) {
    plan_.copies_before.push_back({resumed.block_from, resumed.block_to, resumed.block_tokens});
  }
  for (size_t g = 0; g < resumed.states_from.size(); ++g) {
    plan_.copies_before.push_back({resumed.states_from[g], r.memory.states[g], 0});
  }
  if (match.resume == 0) plan_.clear.insert(plan_.clear.end(), r.memory.states.begin(), r.memory.states.end());

  r.length = match.resume;
  r.prefilling = true;
  r.state_known = true;
  r.slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[static_cast<size_t>(r.slot)] = &r;
  order_.insert(std::upper_bound(order_.begin(), order_.end(), &r,
                                 [](const Request* a, const Request* b) { return a->before(*b); }),
                &r);

  // An identical prompt shall hit, and so shall the next one that shares as much as this one could have shared.
  const int64_t unit = r.chain.unit();
  const auto last_unit = [&](int64_t tokens) { return tokens / unit * unit; };
  r.junctions = {last_unit(std::min(match.dense, r.known() - 1)), last_unit(r.prompt - 1)};
  std::sort(r.junctions.begin(), r.junctions.end());
  if (!r.counted) {
    r.counted = true;
    r.cached_tokens = match.resume;
    sessions_.serve(r.session, r.known() - match.resume);
    if (!r.skip_prefix) {
      stats_.prefix_queries += r.prompt;
      stats_.prefix_hits += match.resume;
    }
  }
}

}  // namespace perigee::sched
