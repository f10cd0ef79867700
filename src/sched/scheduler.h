// What    Decides who runs next. It takes requests, cancels and the outcomes of steps, and gives one StepPlan at a time.
//           plan()    running requests first: those that generate get their tokens, the rest of the budget goes to
//                     prompts; waiting requests are admitted when they can finish and there is work to give them
//           commit()  says what the step gave; rows change hands only in these two calls
//         Guarantees. The best running request (priority, then arrival) is never preempted, so somebody always gets
//         on. Lack of rows makes requests wait and never fail. A waiting request is overtaken a bounded number of times.
//         What is preempted keeps its ids and continues from what the cache still has.
// Owner   sched. Driven by one engine loop.
// Threads One at a time; whoever takes requests from several threads queues them before.
// Errors  create() and submit() answer with a sentence; wrong outcomes are bugs and abort.
// Tests   scheduler_test.cc (behaviour), sched_sim_test.cc (a model that checks every byte it would read).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "cache/cache.h"
#include "sched/request.h"
#include "sched/sessions.h"
#include "sched/step_plan.h"
#include "sched/waiting.h"

namespace perigee::sched {

// A snapshot of the state every so many tokens of a prompt, besides those at its end and where prompts part.
constexpr int64_t kSnapshotIntervalAuto = -1;

struct SchedulerStats {
  cache::CacheStats rows;
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t held_back = 0;       // of the waiting, those that wait for a common prefix that is being computed
  int64_t prefix_queries = 0;  // prompt tokens looked up, once a request
  int64_t prefix_hits = 0;     // of these, found
  int64_t preemptions = 0;
  int64_t snapshots_skipped = 0;  // for lack of rows
};

class Scheduler {
 public:
  // `snapshot_interval` 0: none; kSnapshotIntervalAuto: such that they take at most a sixteenth of a prompt's rows.
  static Result<std::unique_ptr<Scheduler>> create(const SchedulerLimits& limits, const cache::CacheOptions& cache,
                                                   int64_t snapshot_interval = kSnapshotIntervalAuto);

  // Out of range: it could never run here. Resource exhausted: the queue is full, or the scheduler is draining.
  Status submit(ScheduleRequest request);
  // Ends a request whatever it is doing; unknown and ended ids are ignored. Its part of a step that is under way is
  // still carried out, and its rows change hands at commit.
  void cancel(RequestId id);
  // The next part of a generating request also verifies that many draft tokens behind its known ones, as far as they
  // fit: it then has more tokens than there are known ids. Holds for one part, or until it is set anew.
  void set_drafts(RequestId id, int32_t drafts);
  void drain() { draining_ = true; }  // takes no new requests

  // The next step; valid until the next call. An empty plan needs no commit.
  const StepPlan& plan();
  // Outcomes of the parts that choose a token, fastest in the order of the parts. Those of cancelled requests may be
  // missing.
  void commit(const StepPlan& plan, std::span<const Outcome> outcomes);

  bool contains(RequestId id) const { return requests_.contains(id); }
  std::span<const int32_t> ids(RequestId id) const { return at(id).ids; }  // prompt and generated
  std::span<const cache::RowId> blocks(RequestId id) const { return at(id).memory.blocks; }
  std::span<const cache::RowId> states(RequestId id) const { return at(id).memory.states; }
  int64_t cached_tokens(RequestId id) const { return at(id).cached_tokens; }
  int64_t running() const { return static_cast<int64_t>(order_.size()); }
  int64_t waiting() const { return waiting_.size(); }
  bool idle() const { return requests_.empty(); }
  SchedulerStats stats() const;

  // A sentence when the books do not agree; for tests and idle times.
  Status audit() const;

 private:
  enum class Admission { kAdmitted, kHeldBack, kRefused };
  struct Load;  // what prompts are under way, during admission

  Scheduler(const SchedulerLimits& limits, const cache::CacheOptions& cache, int64_t snapshot_interval);

  const Request& at(RequestId id) const;
  int64_t rows_wanted(const Request& r) const;

  // scheduler_plan.cc
  void secure_best();
  bool make_room(Request& r, int64_t tokens);
  void preempt(Request& r);
  int64_t plan_decodes(int64_t budget);
  int64_t plan_drafts(int64_t budget);
  void plan_prefills(int64_t budget);
  void plan_chunk(Request& r, int64_t tokens);
  int64_t next_snapshot(const Request& r) const;
  int64_t chunk_end(const Request& r) const;
  void plan_snapshots();

  // admission.cc
  void admit(int64_t budget);
  Admission try_admit(Request& r, Load& load);
  bool held_back(const Request& r) const;
  bool follow(Request& r, int64_t resume);
  bool welcome(const Request& r, int64_t remaining, const Load& load) const;
  int64_t rows_promised() const;
  void start(Request& r, const cache::Match& match, cache::ResumeMode mode);

  // scheduler.cc
  void advance(Request& r, const PlanPart& part, const Outcome* outcome);
  void end_at_commit(Request& r);
  void stop_running(Request& r);
  void end(Request& r);

  SchedulerLimits limits_;
  cache::Cache cache_;
  int64_t snapshot_interval_;
  Sessions sessions_;
  Waiting waiting_;
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::vector<Request*> slots_;  // of the running requests
  std::vector<int32_t> free_slots_;
  std::vector<Request*> order_;   // the running requests, best first
  std::vector<Request*> ending_;  // of these, those that end at the next commit
  StepPlan plan_;
  bool planned_ = false;    // a step is under way
  bool preempted_ = false;  // in the step that is being planned
  bool draining_ = false;
  uint64_t arrivals_ = 0;
  SchedulerStats stats_;
  // Scratch of one call, kept for its memory.
  std::vector<Request*> prefills_;
  std::vector<int64_t> shares_;
  std::vector<Request*> passed_over_;
};

}  // namespace perigee::sched
