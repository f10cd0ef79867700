// What    A request as the scheduler keeps it, and what the outside gives and hears of it.
// Owner   sched.
// Threads Plain data.
// Errors  None.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "cache/cache.h"
#include "sched/step_plan.h"

namespace perigee::sched {

struct SchedulerLimits {
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 2048;
  int64_t max_model_len = 0;
  int64_t waiting_max = 4096;
};

struct ScheduleRequest {
  RequestId id = 0;
  std::vector<int32_t> prompt;
  int64_t max_tokens = 1;
  int64_t priority = 0;      // lower goes first
  std::string session;       // sessions are served in turn
  std::string salt;          // requests of different salts share no cache
  std::string adapter;       // nor do those of different adapters
  bool skip_prefix = false;  // every prompt token is run: their log-probabilities are wanted
};

// What a part of a step gave.
struct Outcome {
  static constexpr int32_t kTokensMax = 16;
  static constexpr int32_t kAll = -1;

  RequestId request = 0;
  int32_t accepted = kAll;  // how many of the part's tokens count; the rest, rejected drafts, never were
  int32_t count = 0;
  std::array<int32_t, kTokensMax> tokens = {};  // new ids: accepted drafts and the one chosen after them
  bool finished = false;

  std::span<const int32_t> ids() const { return std::span(tokens).first(static_cast<size_t>(count)); }
  void add(int32_t id) {
    CHECK_LT(count, kTokensMax);
    tokens[static_cast<size_t>(count++)] = id;
  }
};

constexpr int32_t kNoSlot = -1;

struct Request {
  Request(const cache::Key& root, int64_t unit) : chain(root, unit) {}

  int64_t known() const { return static_cast<int64_t>(ids.size()); }
  // The last position up to which the state rows have been brought forward.
  int64_t state_position() const { return length / cache::kStateTokens * cache::kStateTokens; }
  bool before(const Request& other) const {
    return priority != other.priority ? priority < other.priority : arrival < other.arrival;
  }

  RequestId id = 0;
  int64_t length = 0;        // tokens that went through the model
  std::vector<int32_t> ids;  // prompt and generated
  int32_t slot = kNoSlot;
  int32_t session = 0;
  int32_t drafts = 0;       // to verify in the next step
  bool prefilling = false;  // from admission until the first token chosen since
  bool ending = false;      // ends when the step that is under way is committed
  bool state_known = true;  // the state rows are those at state_position()
  bool skip_prefix = false;
  bool preempted = false;  // waits in front of those that never ran
  bool counted = false;    // in the hit statistics
  cache::KeyChain chain;
  cache::Holding memory;

  int64_t prompt = 0;  // tokens
  int64_t max_tokens = 0;
  int64_t priority = 0;
  uint64_t arrival = 0;
  int64_t cached_tokens = 0;       // of the prompt, found at the first admission
  std::vector<int64_t> junctions;  // ascending positions where a snapshot is wanted on the way through the prompt
  int32_t overtaken = 0;           // admissions of later requests while this one could not be admitted
  size_t waiting_at = 0;           // its place in the waiting list
  // While waiting: the running request that will pass the common prefix, and where that ends.
  int32_t leader_slot = kNoSlot;
  RequestId leader = 0;
  int64_t leader_until = 0;
};

}  // namespace perigee::sched
