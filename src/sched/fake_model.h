// What    A model without arithmetic for tests of the scheduler: for every row of the pool and every slot it keeps what
//         is in it, and checks that each part of a step finds its own sequence's records and state there, no other's.
//         A record's content is a hash of all ids up to its token, a state's is a hash of the ids before it; the next
//         token is a function of that hash, so a sequence that is computed again comes out the same.
// Owner   sched's tests.
// Threads One at a time.
// Errors  GoogleTest failures.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "base/rng.h"
#include "sched/scheduler.h"

namespace perigee::sched {

// What a sequence is to the model.
struct Script {
  std::vector<int32_t> ids;
  std::vector<uint64_t> hashes;  // hashes[n]: of the namespace and the first n ids
  std::vector<int32_t> drafts;   // to verify with the next part

  explicit Script(uint64_t space) : hashes{mix64(space)} {}
  void add(int32_t id) {
    ids.push_back(id);
    hashes.push_back(mix64(hashes.back() ^ (static_cast<uint64_t>(id) + 0x51ed27)));
  }
  int64_t size() const { return static_cast<int64_t>(ids.size()); }
};

class FakeModel {
 public:
  static constexpr int64_t kGrid = cache::kStateTokens;
  static constexpr uint64_t kNothing = 1;    // a record or state that may not be read
  static constexpr uint64_t kZeroState = 2;  // of no tokens

  explicit FakeModel(const cache::CacheOptions& o, int64_t slots)
      : options_(o),
        records_(static_cast<size_t>(o.rows * o.block_tokens), kNothing),
        states_(static_cast<size_t>(o.rows), kNothing),
        open_(static_cast<size_t>(slots * kGrid), kNothing) {}

  static int32_t next_token(const Script& s) { return static_cast<int32_t>(mix64(s.hashes.back() + 7) % 1000); }

  Script& script(RequestId id) { return scripts_.at(id); }
  bool knows(RequestId id) const { return scripts_.contains(id); }
  void add(RequestId id, Script script) { scripts_.emplace(id, std::move(script)); }
  void forget(RequestId id) { scripts_.erase(id); }

  // Carries out a plan. The outcomes take in the drafts that the model would have chosen itself.
  std::vector<Outcome> run(const Scheduler& scheduler, const StepPlan& plan) {
    std::vector<Outcome> outcomes;
    for (const RowId row : plan.clear) set_state(row, kZeroState);
    for (const RowCopy& c : plan.copies_before) copy(c);
    for (const PlanPart& p : plan.parts) check_reads(scheduler, p);
    for (const PlanPart& p : plan.parts) {
      Outcome o;
      const int64_t length = write(scheduler, p, o);
      bring_state_forward(scheduler, p, length);
      if (p.sample) outcomes.push_back(o);
    }
    for (const RowCopy& c : plan.snapshots) copy(c);
    return outcomes;
  }

 private:
  uint64_t* records(RowId row) { return &records_[static_cast<size_t>(row * options_.block_tokens)]; }
  uint64_t* open(int32_t slot) { return &open_[static_cast<size_t>(slot * kGrid)]; }

  uint64_t state_of(const Script& s, int64_t position, size_t group) const {
    return position == 0 ? kZeroState : mix64(s.hashes[static_cast<size_t>(position)] ^ (group << 32));
  }
  void set_state(RowId row, uint64_t state) {
    states_[static_cast<size_t>(row)] = state;
    std::fill_n(records(row), options_.block_tokens, kNothing);  // one row, one use
  }
  void copy(const RowCopy& c) {
    ASSERT_NE(c.from, c.to);
    if (c.tokens == 0) {
      set_state(c.to, states_[static_cast<size_t>(c.from)]);
      return;
    }
    ASSERT_LT(c.tokens, options_.block_tokens);
    std::copy_n(records(c.from), c.tokens, records(c.to));
    std::fill_n(records(c.to) + c.tokens, options_.block_tokens - c.tokens, kNothing);
    states_[static_cast<size_t>(c.to)] = kNothing;
  }

  void check_reads(const Scheduler& scheduler, const PlanPart& p) {
    const Script& s = script(p.request);
    const std::span<const RowId> blocks = scheduler.blocks(p.request);
    const std::span<const int32_t> ids = scheduler.ids(p.request);
    ASSERT_EQ(ids.size(), s.ids.size());
    const size_t last = std::min<size_t>(20, ids.size());
    ASSERT_TRUE(std::equal(ids.end() - static_cast<std::ptrdiff_t>(last), ids.end(), &s.ids[s.ids.size() - last]));
    ASSERT_GT(p.tokens, 0);
    ASSERT_GE(static_cast<int64_t>(blocks.size()) * options_.block_tokens, p.position + p.tokens);
    for (int64_t at = 0; at < p.position; at += options_.block_tokens) {
      const int64_t n = std::min(options_.block_tokens, p.position - at);
      const RowId row = blocks[static_cast<size_t>(at / options_.block_tokens)];
      ASSERT_EQ(std::memcmp(records(row), &s.hashes[static_cast<size_t>(at + 1)], static_cast<size_t>(n) * 8), 0)
          << "request " << p.request << " reads foreign records in row " << row << ", positions " << at << " to "
          << at + n;
    }
    const int64_t from = p.position / kGrid * kGrid;
    const std::span<const RowId> states = scheduler.states(p.request);
    for (size_t g = 0; g < states.size(); ++g) {
      ASSERT_EQ(states_[static_cast<size_t>(states[g])], state_of(s, from, g))
          << "request " << p.request << " at " << p.position << " reads a foreign state in row " << states[g];
    }
    const int64_t rows = p.position - from;
    ASSERT_EQ(std::memcmp(open(p.slot), &s.hashes[static_cast<size_t>(from + 1)], static_cast<size_t>(rows) * 8), 0)
        << "request " << p.request << " at " << p.position << " reads a foreign open chunk in slot " << p.slot;
  }

  // Writes the records of a part, drafts included, and chooses tokens; returns the length that counts.
  int64_t write(const Scheduler& scheduler, const PlanPart& p, Outcome& o) {
    Script& s = script(p.request);
    const std::span<const RowId> blocks = scheduler.blocks(p.request);
    const auto put = [&](int64_t at, uint64_t record) {
      const RowId row = blocks[static_cast<size_t>(at / options_.block_tokens)];
      records(row)[at % options_.block_tokens] = record;
      states_[static_cast<size_t>(row)] = kNothing;
    };
    const int64_t end = p.position + p.tokens;
    const int64_t known_end = std::min(end, s.size());
    for (int64_t at = p.position; at < known_end; ++at) put(at, s.hashes[static_cast<size_t>(at + 1)]);
    o.request = p.request;
    if (!p.sample) return end;
    const int64_t drafts = end - known_end;
    EXPECT_LE(drafts, static_cast<int64_t>(s.drafts.size()));
    uint64_t draft_hash = s.hashes.back();
    bool good = true;
    int64_t accepted = 0;
    const std::vector<int32_t> proposed(s.drafts.begin(), s.drafts.begin() + drafts);
    s.drafts.clear();
    for (int64_t d = 0; d < drafts; ++d) {
      const int32_t id = proposed[static_cast<size_t>(d)];
      draft_hash = mix64(draft_hash ^ (static_cast<uint64_t>(id) + 0x51ed27));
      put(known_end + d, draft_hash);
      good = good && id == next_token(s);
      if (!good) continue;
      s.add(id);
      o.add(id);
      ++accepted;
    }
    o.accepted = static_cast<int32_t>(known_end - p.position + accepted);
    const int32_t chosen = next_token(s);
    s.add(chosen);
    o.add(chosen);
    return known_end + accepted;
  }

  void bring_state_forward(const Scheduler& scheduler, const PlanPart& p, int64_t length) {
    const Script& s = script(p.request);
    const int64_t at = length / kGrid * kGrid;
    const std::span<const RowId> states = scheduler.states(p.request);
    for (size_t g = 0; g < states.size(); ++g) set_state(states[g], state_of(s, at, g));
    std::fill_n(open(p.slot), kGrid, kNothing);
    for (int64_t i = at; i < length; ++i) open(p.slot)[i - at] = s.hashes[static_cast<size_t>(i + 1)];
  }

  cache::CacheOptions options_;
  std::vector<uint64_t> records_;  // [row, token]
  std::vector<uint64_t> states_;   // [row]
  std::vector<uint64_t> open_;     // [slot, row of the chunk]
  std::unordered_map<RequestId, Script> scripts_;
};

}  // namespace perigee::sched
