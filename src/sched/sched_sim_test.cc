// A million steps of random traffic through the scheduler, in small pools, against a model that checks every read.
#include "sched/fake_model.h"

namespace perigee::sched {
namespace {

constexpr int64_t kSteps = 1'000'000;
constexpr int64_t kStepsOfRun = 2500;

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(random_bits(seed_, count_++) % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool one_in(int64_t n) { return below(n) == 0; }
  int64_t pick(std::initializer_list<int64_t> values) {
    return *(values.begin() + below(static_cast<int64_t>(values.size())));
  }

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

// What the runs together must have met.
struct Coverage {
  int64_t steps = 0;
  int64_t finished = 0;
  int64_t cancelled_waiting_or_idle = 0;
  int64_t cancelled_under_way = 0;
  int64_t outcomes_missing = 0;
  int64_t drafts_taken = 0;
  int64_t drafts_rejected = 0;
  int64_t blocks_copied = 0;
  int64_t states_copied = 0;
  int64_t snapshots = 0;
  int64_t held_back = 0;
  int64_t prefix_hits = 0;
  int64_t preemptions = 0;
  int64_t refused = 0;
};

class Simulation {
 public:
  Simulation(uint64_t seed, Coverage& coverage) : seed_(seed), random_(mix64(seed)), coverage_(coverage) {
    cache_.groups = random_.between(1, 3);
    cache_.block_tokens = random_.pick({64, 64, 128});
    cache_.match_unit = random_.pick({16, 16, 32, 64});
    cache_.rows = random_.pick({6, 12, 20, 30, 60}) + cache_.groups;
    limits_.max_num_seqs = random_.pick({1, 3, 6, 12});
    limits_.max_num_batched_tokens = limits_.max_num_seqs + random_.pick({4, 30, 200, 500});
    limits_.max_model_len = std::min<int64_t>(900, (cache_.rows - cache_.groups) * cache_.block_tokens);
    limits_.waiting_max = random_.pick({4, 30});
    drafting_ = random_.one_in(2);
    busy_ = random_.pick({1, 3, 10, 40});
    patience_ = random_.pick({25, 500});
    long_ = random_.pick({60, 200, 600});
    long_share_ = random_.pick({1, 1, 4});
    Result<std::unique_ptr<Scheduler>> made =
        Scheduler::create(limits_, cache_, random_.pick({0, 64, 192, kSnapshotIntervalAuto}));
    CHECK(made.ok());
    scheduler_ = std::move(*made);
    model_ = std::make_unique<FakeModel>(cache_, limits_.max_num_seqs);
    // Short prompts with long answers: what is admitted does not fit for long.
    const bool growing = random_.one_in(2);
    if (growing) long_ = 900;
    for (int64_t f = 0; f < 4; ++f)
      family_lengths_.push_back(random_.between(10, growing ? 80 : limits_.max_model_len / 3));
    if (growing) long_share_ = 1;
  }

  void play() {
    for (int64_t i = 0; i < kStepsOfRun && ok(); ++i) {
      if (random_.one_in(busy_)) arrive();
      if (random_.one_in(patience_)) cancel_one(coverage_.cancelled_waiting_or_idle);
      step();
    }
    scheduler_->drain();
    for (int64_t i = 0; i < 100'000 && !scheduler_->idle() && ok(); ++i) step();
    if (!ok()) return;
    ASSERT_TRUE(scheduler_->idle()) << "requests that never end";
    const SchedulerStats s = scheduler_->stats();
    ASSERT_EQ(s.rows.held, 0);
    ASSERT_EQ(s.rows.free + s.rows.cached, cache_.rows);
    coverage_.prefix_hits += s.prefix_hits;
    coverage_.preemptions += s.preemptions;
  }

 private:
  struct Live {
    RequestId id;
    int64_t ids_max;
    int64_t session;
    bool forced;  // gets several tokens at once now and then
  };

  bool ok() const { return !testing::Test::HasFatalFailure() && !testing::Test::HasNonfatalFailure(); }

  // Prompts share the beginnings of a few families, go on where a session stopped, or are new.
  std::vector<int32_t> prompt_of(int64_t session, uint64_t& space) {
    std::vector<int32_t> ids;
    if (random_.one_in(2) && !sessions_[session].empty() &&
        static_cast<int64_t>(sessions_[session].size()) < limits_.max_model_len / 2) {
      ids = sessions_[session];
      space = session_spaces_[session];
    } else {
      const int64_t family = random_.below(4);
      const int64_t n = random_.one_in(3) ? random_.between(1, family_lengths_[static_cast<size_t>(family)])
                                          : family_lengths_[static_cast<size_t>(family)];
      for (int64_t i = 0; i < n; ++i)
        ids.push_back(static_cast<int32_t>(random_bits(seed_ + 77, static_cast<uint64_t>(family * 4096 + i)) % 1000));
      space = static_cast<uint64_t>(random_.below(2));
    }
    for (int64_t n = random_.one_in(3) ? 0 : random_.between(1, 70); n > 0; --n)
      ids.push_back(static_cast<int32_t>(random_.below(3)));
    return ids;
  }

  void arrive() {
    const int64_t session = random_.below(5);
    uint64_t space = 0;
    const std::vector<int32_t> prompt = prompt_of(session, space);
    const int64_t copies = random_.one_in(8) ? random_.between(2, 6) : 1;  // one agent sends its helpers off at once
    for (int64_t c = 0; c < copies; ++c) {
      ScheduleRequest r;
      r.id = next_id_++;
      r.prompt = prompt;
      for (int64_t n = copies > 1 ? random_.between(0, 20) : 0; n > 0; --n)
        r.prompt.push_back(static_cast<int32_t>(random_.below(1000)));
      r.max_tokens = random_.one_in(long_share_) ? random_.between(1, long_) : random_.between(1, 30);
      if (!random_.one_in(20))
        r.max_tokens =
            std::min(r.max_tokens, std::max<int64_t>(1, limits_.max_model_len - static_cast<int64_t>(r.prompt.size())));
      r.priority = random_.one_in(4) ? random_.between(0, 2) : 1;
      r.session = std::to_string(session);
      r.salt = space == 0 ? "" : "salt";
      r.skip_prefix = random_.one_in(20);
      Script script(space);
      for (const int32_t id : r.prompt) script.add(id);
      const Live live = {r.id, script.size() + r.max_tokens, session, random_.one_in(6)};
      if (!scheduler_->submit(std::move(r)).ok()) {
        ++coverage_.refused;
        sessions_.erase(session);  // it may have grown too long
        continue;
      }
      session_spaces_[session] = space;
      model_->add(live.id, std::move(script));
      live_.push_back(live);
    }
  }

  void cancel_one(int64_t& counter) {
    if (live_.empty()) return;
    const size_t i = static_cast<size_t>(random_.below(static_cast<int64_t>(live_.size())));
    const RequestId id = live_[i].id;
    if (random_.one_in(2)) sessions_[live_[i].session] = model_->script(id).ids;  // the user goes on all the same
    scheduler_->cancel(id);
    scheduler_->cancel(id);  // twice is once
    cancelled_.push_back(id);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
    ++counter;
  }

  void propose_drafts() {
    for (const Live& l : live_) {
      Script& s = model_->script(l.id);
      s.drafts.clear();
      Script ahead = s;
      const int64_t n = !drafting_ || random_.one_in(4) ? 0 : random_.between(1, 7);
      for (int64_t d = 0; d < n; ++d) {
        const int32_t id = random_.one_in(6) ? 5000 : FakeModel::next_token(ahead);
        ahead.add(id);
        s.drafts.push_back(id);
      }
      scheduler_->set_drafts(l.id, static_cast<int32_t>(n));
    }
  }

  void count(const StepPlan& plan) {
    ++coverage_.steps;
    for (const RowCopy& c : plan.copies_before) ++(c.tokens > 0 ? coverage_.blocks_copied : coverage_.states_copied);
    coverage_.snapshots += static_cast<int64_t>(plan.snapshots.size());
    coverage_.held_back += scheduler_->stats().held_back;
  }

  void check_plan(const StepPlan& plan) {
    int64_t tokens = 0;
    bool prefill_seen = false;
    std::vector<uint8_t> slots(static_cast<size_t>(limits_.max_num_seqs));
    for (const PlanPart& p : plan.parts) {
      tokens += p.tokens;
      ASSERT_EQ(slots[static_cast<size_t>(p.slot)]++, 0);
      const Script& s = model_->script(p.request);
      ASSERT_EQ(p.sample, p.position + p.tokens >= s.size());
      prefill_seen = prefill_seen || p.tokens > 16 + 16;
      ASSERT_FALSE(prefill_seen && p.tokens > s.size() - p.position) << "a decode after a prompt";
    }
    ASSERT_LE(tokens, limits_.max_num_batched_tokens);
  }

  void step() {
    propose_drafts();
    const StepPlan& plan = scheduler_->plan();
    const Status planned = scheduler_->audit();
    ASSERT_TRUE(planned.ok()) << planned.error().message;
    if (plan.empty()) {
      ASSERT_TRUE(scheduler_->idle()) << "somebody waits and nothing runs";
      return;
    }
    count(plan);
    check_plan(plan);
    if (!ok()) return;
    std::vector<Outcome> outcomes = model_->run(*scheduler_, plan);
    if (!ok()) return;
    if (random_.one_in(patience_)) cancel_one(coverage_.cancelled_under_way);
    std::erase_if(outcomes, [&](const Outcome& o) {
      const bool gone =
          std::find(cancelled_.begin(), cancelled_.end(), o.request) != cancelled_.end() && random_.one_in(2);
      coverage_.outcomes_missing += gone ? 1 : 0;
      return gone;
    });
    for (Outcome& o : outcomes) settle(plan, o);
    if (random_.one_in(10)) std::reverse(outcomes.begin(), outcomes.end());
    scheduler_->commit(plan, outcomes);
    for (const RequestId id : cancelled_) model_->forget(id);
    cancelled_.clear();
    const Status committed = scheduler_->audit();
    ASSERT_TRUE(committed.ok()) << committed.error().message;
  }

  // Ends requests at their limit or at a stop token; gives some several tokens at once.
  void settle(const StepPlan& plan, Outcome& o) {
    const auto part =
        std::find_if(plan.parts.begin(), plan.parts.end(), [&](const PlanPart& p) { return p.request == o.request; });
    const int64_t drafts = part->position + part->tokens - (model_->script(o.request).size() - o.count);
    coverage_.drafts_taken += o.count - 1;
    coverage_.drafts_rejected += std::max<int64_t>(drafts, 0) - (o.count - 1);
    const auto live = std::find_if(live_.begin(), live_.end(), [&](const Live& l) { return l.id == o.request; });
    if (live == live_.end()) return;
    Script& s = model_->script(o.request);
    ASSERT_LE(s.size(), live->ids_max);
    for (int64_t n = live->forced ? random_.below(4) : 0; n > 0 && s.size() < live->ids_max; --n) {
      o.add(FakeModel::next_token(s));
      s.add(FakeModel::next_token(s));
    }
    o.finished = s.size() == live->ids_max || s.ids.back() % 400 == 0;
    if (!o.finished) return;
    ++coverage_.finished;
    sessions_[live->session] = s.ids;
    cancelled_.push_back(o.request);
    live_.erase(live);
  }

  uint64_t seed_;
  Random random_;
  Coverage& coverage_;
  cache::CacheOptions cache_;
  SchedulerLimits limits_;
  bool drafting_ = false;
  int64_t busy_ = 1;        // steps between arrivals
  int64_t patience_ = 1;    // steps between cancels
  int64_t long_ = 0;        // most tokens of a long answer
  int64_t long_share_ = 1;  // answers to one long one
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<FakeModel> model_;
  std::vector<int64_t> family_lengths_;
  std::unordered_map<int64_t, std::vector<int32_t>> sessions_;  // what a session's last answer left behind
  std::unordered_map<int64_t, uint64_t> session_spaces_;
  std::vector<Live> live_;
  std::vector<RequestId> cancelled_;  // ended; the model forgets them after the commit
  RequestId next_id_ = 1;
};

TEST(SchedulerSimulation, EveryPartReadsItsOwnRecordsAndState) {
  Coverage c;
  uint64_t seed = 1;
  for (; c.steps < kSteps && !HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Simulation(seed, c).play();
  }
  fmt::print(
      "seeds 1 to {}: {} steps, {} finished, {} refused, {} + {} cancelled idle and under way, {} outcomes missing\n"
      "{} prompt tokens hit, {} preemptions, {} + {} rows copied (blocks, states), {} snapshot rows, {} held back\n"
      "{} drafts taken, {} rejected\n",
      seed - 1, c.steps, c.finished, c.refused, c.cancelled_waiting_or_idle, c.cancelled_under_way, c.outcomes_missing,
      c.prefix_hits, c.preemptions, c.blocks_copied, c.states_copied, c.snapshots, c.held_back, c.drafts_taken,
      c.drafts_rejected);
  for (const int64_t met :
       {c.finished, c.refused, c.cancelled_waiting_or_idle, c.cancelled_under_way, c.outcomes_missing, c.prefix_hits,
        c.preemptions, c.blocks_copied, c.states_copied, c.snapshots, c.held_back, c.drafts_taken, c.drafts_rejected}) {
    EXPECT_GT(met, 100);
  }
}

}  // namespace
}  // namespace perigee::sched
