#include <algorithm>

#include "sched/scheduler.h"

namespace perigee::sched {
namespace {

constexpr int64_t kShortShare = 4;  // the shortest prompt gets at least one in so many tokens of the budget

}  // namespace

const StepPlan& Scheduler::plan() {
  CHECK(!planned_);
  plan_.clear.clear();
  plan_.copies_before.clear();
  plan_.parts.clear();
  plan_.snapshots.clear();
  preempted_ = false;
  secure_best();
  int64_t budget = plan_decodes(limits_.max_num_batched_tokens);
  budget = plan_drafts(budget);
  // What was preempted just now would be taken back at once.
  if (!preempted_) admit(budget);
  plan_prefills(budget);
  plan_snapshots();
  planned_ = !plan_.empty();
  CHECK(planned_ || (plan_.clear.empty() && plan_.copies_before.empty()));
  return plan_;
}

// The best running request gets on in every step, whatever the others need.
void Scheduler::secure_best() {
  if (!order_.empty()) CHECK(make_room(*order_.front(), order_.front()->length + 1));
}

// Rows for the first `tokens` tokens of a running request, if need be those of the worst one. False when that is the
// request itself, which then waits.
bool Scheduler::make_room(Request& r, int64_t tokens) {
  while (static_cast<int64_t>(r.memory.blocks.size()) < cache_.blocks(tokens)) {
    if (cache_.grow(r.memory)) continue;
    Request& worst = *order_.back();
    CHECK(&worst != order_.front());  // alone, every request fits
    preempt(worst);
    if (&worst == &r) return false;
  }
  return true;
}

void Scheduler::preempt(Request& r) {
  stop_running(r);
  r.length = 0;
  r.drafts = 0;
  r.prefilling = false;
  r.preempted = true;
  r.state_known = true;
  r.junctions.clear();
  waiting_.add(r);
  preempted_ = true;
  ++stats_.preemptions;
}

// One part for every request that generates, best first; returns what is left of the budget.
int64_t Scheduler::plan_decodes(int64_t budget) {
  for (size_t i = 0; i < order_.size(); ++i) {
    Request& r = *order_[i];
    const int64_t tokens = r.prefilling ? 0 : std::min(r.known() - r.length, budget);
    if (tokens == 0) continue;
    // Victims stand behind the one that needs the row, so none of them has a part yet.
    if (!make_room(r, r.length + tokens)) break;
    plan_.parts.push_back({r.id, r.slot, r.length, tokens, r.length + tokens == r.known()});
    budget -= tokens;
  }
  return budget;
}

// Drafts take what is left, but nobody's rows, and a quarter of the budget stays for prompts when there are any.
int64_t Scheduler::plan_drafts(int64_t budget) {
  const bool prompts = plan_.parts.size() < order_.size() || !waiting_.empty();
  int64_t left = budget - (prompts ? limits_.max_num_batched_tokens / kShortShare : 0);
  for (PlanPart& part : plan_.parts) {
    Request& r = *slots_[static_cast<size_t>(part.slot)];
    if (r.drafts == 0) continue;
    const int64_t tokens_max = r.prompt + r.max_tokens - r.known() - 1;  // one more is chosen after the drafts
    int64_t drafts = std::min({int64_t{r.drafts}, tokens_max, left});
    r.drafts = 0;
    if (drafts <= 0 || !part.sample) continue;
    const int64_t end = part.position + part.tokens;
    while (static_cast<int64_t>(r.memory.blocks.size()) < cache_.blocks(end + drafts)) {
      if (cache_.grow(r.memory)) continue;
      drafts = static_cast<int64_t>(r.memory.blocks.size()) * cache_.options().block_tokens - end;
    }
    part.tokens += drafts;
    left -= drafts;
    budget -= drafts;
  }
  return budget;
}

// The next position after the state where a snapshot is wanted and missing; beyond the known ids when there is none.
int64_t Scheduler::next_snapshot(const Request& r) const {
  int64_t next = r.known() + cache::kStateTokens;
  const int64_t from = r.state_position();
  const auto consider = [&](int64_t at) {
    if (at > from && at < next && !cache_.has_snapshot(r.chain.at(at))) next = at;
  };
  for (const int64_t at : r.junctions) consider(at);
  if (snapshot_interval_ > 0) {
    const int64_t at = (from / snapshot_interval_ + 1) * snapshot_interval_;
    if (at <= r.known()) consider(at);
  }
  return next;
}

// Where the next chunk has to end at the latest, so that the state stands still where a snapshot is wanted.
int64_t Scheduler::chunk_end(const Request& r) const {
  const int64_t at = next_snapshot(r);
  return r.known() < at + cache::kStateTokens ? r.known() : at;
}

// The best prompts first, except that the shortest of the best priority has a share of its own: a short continuation
// does not wait behind a long document.
void Scheduler::plan_prefills(int64_t budget) {
  prefills_.clear();
  for (Request* r : order_) {
    if (r->prefilling) prefills_.push_back(r);
  }
  shares_.assign(prefills_.size(), 0);
  if (prefills_.empty()) return;
  size_t shortest = 0;
  for (size_t i = 1; i < prefills_.size() && prefills_[i]->priority == prefills_[0]->priority; ++i) {
    const auto left = [](const Request* r) { return r->known() - r->length; };
    if (left(prefills_[i]) < left(prefills_[shortest])) shortest = i;
  }
  const auto give = [&](size_t i, int64_t most) {
    const Request& r = *prefills_[i];
    const int64_t tokens = std::min(chunk_end(r) - r.length - shares_[i], most);
    shares_[i] += tokens;
    budget -= tokens;
  };
  give(shortest, (budget + kShortShare - 1) / kShortShare);
  for (size_t i = 0; i < prefills_.size() && budget > 0; ++i) give(i, budget);
  for (size_t i = 0; i < prefills_.size(); ++i) {
    if (shares_[i] > 0) plan_chunk(*prefills_[i], shares_[i]);
  }
}

// As many of the tokens as there are rows for; only secure_best() takes rows from others.
void Scheduler::plan_chunk(Request& r, int64_t tokens) {
  while (static_cast<int64_t>(r.memory.blocks.size()) < cache_.blocks(r.length + tokens)) {
    if (!cache_.grow(r.memory)) {
      tokens = static_cast<int64_t>(r.memory.blocks.size()) * cache_.options().block_tokens - r.length;
    }
  }
  if (tokens > 0) plan_.parts.push_back({r.id, r.slot, r.length, tokens, r.length + tokens == r.known()});
}

// After all parts have their rows.
void Scheduler::plan_snapshots() {
  for (const PlanPart& part : plan_.parts) {
    const Request& r = *slots_[static_cast<size_t>(part.slot)];
    if (!r.prefilling) continue;
    const int64_t at = next_snapshot(r);
    if ((part.position + part.tokens) / cache::kStateTokens * cache::kStateTokens != at) continue;
    const std::span<const RowId> rows = cache_.stage_snapshot(r.chain.at(at));
    if (rows.empty()) ++stats_.snapshots_skipped;
    for (size_t g = 0; g < rows.size(); ++g) plan_.snapshots.push_back({r.memory.states[g], rows[g], 0});
  }
}

}  // namespace perigee::sched
