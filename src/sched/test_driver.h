// What    Drives a scheduler with the fake model for tests that look at single steps.
// Owner   sched's tests.
// Threads One at a time.
// Errors  GoogleTest failures.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "sched/fake_model.h"

namespace perigee::sched {

inline std::vector<int32_t> ids_of(int32_t seed, int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(seed * 100'000 + static_cast<int32_t>(i));
  return ids;
}

inline std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Driver {
 public:
  explicit Driver(const SchedulerLimits& limits, const cache::CacheOptions& cache, int64_t interval = 0)
      : model_(cache, limits.max_num_seqs) {
    Result<std::unique_ptr<Scheduler>> made = Scheduler::create(limits, cache, interval);
    CHECK(made.ok());
    scheduler_ = std::move(*made);
  }

  Scheduler& scheduler() { return *scheduler_; }
  FakeModel& model() { return model_; }

  // Submits a request; its id.
  RequestId add(std::vector<int32_t> prompt, int64_t max_tokens = 1, ScheduleRequest rest = {}) {
    rest.id = next_id_++;
    rest.prompt = std::move(prompt);
    rest.max_tokens = max_tokens;
    Script script(hash_name(rest.salt));
    for (const int32_t id : rest.prompt) script.add(id);
    ids_max_[rest.id] = script.size() + max_tokens;
    model_.add(rest.id, std::move(script));
    const RequestId id = rest.id;
    const Status s = scheduler_->submit(std::move(rest));
    EXPECT_TRUE(s.ok()) << s.error().message;
    return id;
  }

  const StepPlan& plan() {
    const StepPlan& p = scheduler_->plan();
    expect_sound();
    return p;
  }

  // Runs what was planned. Requests end at their limit; what they said stays in said().
  void commit(const StepPlan& p) {
    std::vector<Outcome> outcomes = model_.run(*scheduler_, p);
    for (Outcome& o : outcomes) {
      Script& s = model_.script(o.request);
      o.finished = s.size() >= ids_max_.at(o.request);
      if (o.finished) said_[o.request] = s.ids;
    }
    scheduler_->commit(p, outcomes);
    expect_sound();
  }

  StepPlan step() {
    StepPlan p = plan();
    if (!p.empty()) commit(p);
    return p;
  }

  int64_t run_until_idle(int64_t steps_max = 10'000) {
    int64_t steps = 0;
    for (; !scheduler_->idle() && steps < steps_max; ++steps) EXPECT_FALSE(step().empty());
    EXPECT_TRUE(scheduler_->idle());
    return steps;
  }

  bool finished(RequestId id) const { return said_.contains(id); }
  const std::vector<int32_t>& said(RequestId id) const { return said_.at(id); }  // prompt and answer

  void expect_sound() {
    const Status s = scheduler_->audit();
    EXPECT_TRUE(s.ok()) << s.error().message;
  }

 private:
  FakeModel model_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<RequestId, int64_t> ids_max_;
  std::map<RequestId, std::vector<int32_t>> said_;
  RequestId next_id_ = 1;
};

inline const PlanPart* part_of(const StepPlan& plan, RequestId id) {
  for (const PlanPart& p : plan.parts) {
    if (p.request == id) return &p;
  }
  return nullptr;
}

}  // namespace perigee::sched
