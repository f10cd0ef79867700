// What the scheduler does with the cache: hits, snapshots, cancels, drafts, preemption.
#include <gmock/gmock.h>

#include "sched/test_driver.h"

namespace perigee::sched {
namespace {

using testing::HasSubstr;

const cache::CacheOptions kCache = {200, 64, 3, 16};
const SchedulerLimits kLimits = {8, 512, 4000, 100};

std::string refusal(const SchedulerLimits& limits, const cache::CacheOptions& cache, int64_t interval = 0) {
  const auto made = Scheduler::create(limits, cache, interval);
  return made.ok() ? "" : made.error().message;
}

TEST(Scheduler, LimitsThatCannotWorkGetASentence) {
  EXPECT_EQ(refusal(kLimits, kCache), "");
  EXPECT_THAT(refusal({0, 512, 4000, 100}, kCache), HasSubstr("--max-num-seqs"));
  EXPECT_THAT(refusal({8, 7, 4000, 100}, kCache), HasSubstr("--max-num-batched-tokens"));
  EXPECT_THAT(refusal({8, 512, 1, 100}, kCache), HasSubstr("--max-model-len"));
  EXPECT_THAT(refusal({8, 512, 4000, 0}, kCache), HasSubstr("queue"));
  EXPECT_THAT(refusal(kLimits, kCache, 24), HasSubstr("snapshot interval"));
  EXPECT_THAT(refusal(kLimits, {200, 65, 3, 16}), HasSubstr("block_tokens"));
}

TEST(Scheduler, RequestsThatCanNeverRunGetASentence) {
  Driver d({2, 512, 1000, 2}, {10, 64, 3, 16});
  const auto submit = [&](RequestId id, int64_t prompt, int64_t max_tokens) {
    ScheduleRequest r;
    r.id = id;
    r.prompt = ids_of(1, prompt);
    r.max_tokens = max_tokens;
    const Status s = d.scheduler().submit(std::move(r));
    return s.ok() ? std::pair(ErrorCode::kInternal, std::string()) : std::pair(s.error().code, s.error().message);
  };
  EXPECT_THAT(submit(1, 0, 1).second, HasSubstr("prompt is empty"));
  EXPECT_THAT(submit(1, 1, 0).second, HasSubstr("max_tokens is 0"));
  EXPECT_EQ(submit(1, 999, 2).first, ErrorCode::kOutOfRange);
  EXPECT_THAT(submit(1, 999, 2).second, HasSubstr("--max-model-len"));
  EXPECT_THAT(submit(1, 448, 2).second, HasSubstr("need 11 cache rows, there are 10"));
  EXPECT_EQ(submit(1, 448, 1).second, "");  // the last token chosen needs no room
  EXPECT_THAT(submit(1, 10, 1).second, HasSubstr("request id 1 is in use"));
  EXPECT_EQ(submit(2, 10, 1).second, "");
  EXPECT_EQ(submit(3, 10, 1).first, ErrorCode::kResourceExhausted);
  d.scheduler().cancel(2);
  d.scheduler().drain();
  EXPECT_THAT(submit(3, 10, 1).second, HasSubstr("shutting down"));
}

TEST(Scheduler, OneRequestFromPromptToEnd) {
  Driver d(kLimits, kCache);
  const RequestId id = d.add(ids_of(1, 600), 3);
  StepPlan p = d.step();
  EXPECT_EQ(p.clear.size(), 3u);
  ASSERT_EQ(p.parts.size(), 1u);
  EXPECT_EQ(p.parts[0].tokens, 512);
  EXPECT_FALSE(p.parts[0].sample);
  p = d.step();
  EXPECT_EQ(p.parts[0].position, 512);
  EXPECT_EQ(p.parts[0].tokens, 88);
  EXPECT_TRUE(p.parts[0].sample);
  EXPECT_EQ(p.snapshots.size(), 3u);  // 592
  EXPECT_EQ(d.step().parts[0].tokens, 1);
  EXPECT_EQ(d.step().parts[0].position, 601);
  EXPECT_TRUE(d.finished(id));
  EXPECT_TRUE(d.plan().empty());
  EXPECT_EQ(d.scheduler().stats().rows.held, 0);
}

TEST(Scheduler, AnIdenticalPromptRunsItsLastTokensOnly) {
  for (const int64_t n : {17, 160, 161, 600, 608}) {
    Driver d(kLimits, kCache);
    d.add(ids_of(1, n));
    d.run_until_idle();
    const RequestId again = d.add(ids_of(1, n));
    const StepPlan p = d.step();
    EXPECT_EQ(p.parts[0].position, (n - 1) / 16 * 16) << n;
    EXPECT_EQ(p.copies_before.size() > 2, true);
    EXPECT_TRUE(d.finished(again));
    EXPECT_EQ(d.scheduler().stats().prefix_hits, (n - 1) / 16 * 16);
    EXPECT_EQ(d.scheduler().stats().prefix_queries, 2 * n);
  }
}

TEST(Scheduler, TheNextTurnGoesOnWhereTheLastOneEnded) {
  Driver d(kLimits, kCache);
  const RequestId first = d.add(ids_of(1, 300), 50);
  d.run_until_idle();
  const RequestId second = d.add(joined(d.said(first), ids_of(2, 40)), 5);
  d.step();
  EXPECT_EQ(d.scheduler().cached_tokens(second), 349 / 16 * 16);  // 349 went through the model
  d.run_until_idle();
}

// Unique tokens behind a shared start: a state is needed where they part, not at the ends of blocks of unique tokens.
TEST(Scheduler, ASharedStartHitsFromTheThirdRequestOn) {
  Driver d(kLimits, kCache);
  const auto prompt = [](int32_t n) { return joined(ids_of(1, 1500), ids_of(n, 700)); };
  d.add(prompt(2));
  d.run_until_idle();
  d.add(prompt(3));  // finds the records, and leaves the state behind
  d.run_until_idle();
  const RequestId third = d.add(prompt(4));
  d.step();
  EXPECT_EQ(d.scheduler().cached_tokens(third), 1500 / 16 * 16);
  d.run_until_idle();
}

TEST(Scheduler, HelpersSentOffAtOnceComputeWhatTheyShareOnce) {
  Driver d({8, 512, 4000, 100}, kCache);
  std::vector<RequestId> helpers;
  for (int32_t n = 0; n < 8; ++n) helpers.push_back(d.add(joined(ids_of(1, 1000), ids_of(2 + n, 100)), 4));
  int64_t computed = 0;
  while (!d.scheduler().idle()) {
    const StepPlan p = d.step();
    for (const PlanPart& part : p.parts) computed += part.tokens;
  }
  // 992 shared tokens once; of each helper 108 of its own and three that it generated.
  EXPECT_EQ(computed, 992 + 8 * (108 + 3));
  for (const RequestId id : helpers) EXPECT_TRUE(d.finished(id));
}

TEST(Scheduler, AFollowerStartsAsSoonAsTheCommonPartIsThere) {
  Driver d({8, 512, 4000, 100}, kCache);
  const RequestId leader = d.add(joined(ids_of(1, 1000), ids_of(2, 2500)));
  const RequestId follower = d.add(joined(ids_of(1, 1000), ids_of(3, 100)));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(part_of(d.step(), follower), nullptr);
  const StepPlan p = d.step();
  ASSERT_NE(part_of(p, follower), nullptr);
  EXPECT_EQ(part_of(p, follower)->position, 992);
  ASSERT_NE(part_of(p, leader), nullptr);
  EXPECT_EQ(part_of(p, leader)->position, 992);
  d.run_until_idle();
}

TEST(Scheduler, TwoIdenticalPromptsInOneStep) {
  for (const int64_t n : {40, 100, 500}) {
    Driver d(kLimits, kCache);
    const RequestId a = d.add(ids_of(1, n), 20);
    const RequestId b = d.add(ids_of(1, n), 20);
    d.run_until_idle();
    EXPECT_EQ(d.said(a), d.said(b));
    // And once more, with the half-filled last row there for both.
    const RequestId c = d.add(joined(d.said(a), ids_of(2, 30)), 20);
    const RequestId e = d.add(joined(d.said(a), ids_of(3, 30)), 20);
    d.run_until_idle();
    EXPECT_TRUE(d.finished(c) && d.finished(e));
  }
}

TEST(Scheduler, AFollowerGoesOnWhenItsLeaderIsCancelled) {
  Driver d({8, 64, 4000, 100}, kCache);
  const RequestId leader = d.add(joined(ids_of(1, 1000), ids_of(2, 10)));
  const RequestId follower = d.add(joined(ids_of(1, 1000), ids_of(3, 10)));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(d.step().parts.size(), 1u);
  EXPECT_EQ(d.scheduler().stats().held_back, 1);
  d.scheduler().cancel(leader);
  const StepPlan p = d.step();
  ASSERT_EQ(p.parts.size(), 1u);
  EXPECT_EQ(p.parts[0].request, follower);
  EXPECT_EQ(p.parts[0].position, 256);  // what the leader left
  d.run_until_idle();
  EXPECT_TRUE(d.finished(follower));
}

TEST(Scheduler, PromptsThatWantAllLogProbabilitiesReadNoHits) {
  Driver d(kLimits, kCache);
  d.add(ids_of(1, 300));
  d.run_until_idle();
  ScheduleRequest all;
  all.skip_prefix = true;
  d.add(ids_of(1, 300), 1, all);
  EXPECT_EQ(d.step().parts[0].position, 0);
  EXPECT_EQ(d.scheduler().stats().prefix_queries, 300);
  d.run_until_idle();
}

TEST(Scheduler, SaltsAndAdaptersShareNothing) {
  Driver d(kLimits, kCache);
  d.add(ids_of(1, 300));
  d.run_until_idle();
  for (const char* which : {"salt", "adapter"}) {
    ScheduleRequest other;
    (which == std::string("salt") ? other.salt : other.adapter) = "x";
    d.add(ids_of(1, 300), 1, other);
    EXPECT_EQ(d.step().parts[0].position, 0);
    d.run_until_idle();
  }
  EXPECT_EQ(d.scheduler().stats().prefix_hits, 0);
}

TEST(Scheduler, SnapshotsAtIntervalsOfALongPrompt) {
  Driver d({8, 512, 4000, 100}, kCache, 256);
  d.add(ids_of(1, 2000));
  d.run_until_idle();
  for (const int64_t n : {1000, 300}) {
    const RequestId id = d.add(joined(ids_of(1, n), ids_of(n == 1000 ? 2 : 3, 50)));
    const StepPlan p = d.plan();
    EXPECT_EQ(d.scheduler().cached_tokens(id), n / 256 * 256);
    d.commit(p);
    d.run_until_idle();
  }
}

TEST(Scheduler, AThousandCancelsReturnEveryRow) {
  Driver d({4, 64, 2000, 1000}, {40, 64, 3, 16});
  for (uint64_t n = 0; n < 1000; ++n) {
    const RequestId id = d.add(ids_of(static_cast<int32_t>(n % 7), 10 + static_cast<int64_t>(n % 300)), 50);
    for (uint64_t steps = n % 5; steps > 0; --steps) d.step();
    if (n % 2 == 0) {
      d.scheduler().cancel(id);
    } else {
      const StepPlan p = d.plan();
      d.scheduler().cancel(id);
      if (!p.empty()) d.commit(p);
    }
    EXPECT_FALSE(d.scheduler().contains(id));
  }
  EXPECT_TRUE(d.scheduler().idle());
  const cache::CacheStats rows = d.scheduler().stats().rows;
  EXPECT_EQ(rows.held, 0);
  EXPECT_EQ(rows.free + rows.cached, rows.rows);
}

TEST(Scheduler, CancellingWhatNeverRanOrHasEndedDoesNothing) {
  Driver d(kLimits, kCache);
  d.scheduler().cancel(77);
  const RequestId waiting = d.add(ids_of(1, 10));
  d.scheduler().cancel(waiting);
  d.scheduler().cancel(waiting);
  EXPECT_TRUE(d.scheduler().idle());
  const RequestId done = d.add(ids_of(1, 10));
  d.run_until_idle();
  d.scheduler().cancel(done);
  EXPECT_TRUE(d.plan().empty());
}

TEST(Scheduler, RowsOfACancelledRequestStayUntilTheStepIsOver) {
  Driver d(kLimits, kCache);
  const RequestId id = d.add(ids_of(1, 300), 10);
  const StepPlan p = d.plan();
  const int64_t held = d.scheduler().stats().rows.held;
  d.scheduler().cancel(id);
  EXPECT_EQ(d.scheduler().stats().rows.held, held);
  EXPECT_EQ(d.scheduler().ids(id).size(), 300u);
  d.scheduler().commit(p, {});  // its outcome may be missing
  EXPECT_FALSE(d.scheduler().contains(id));
  EXPECT_EQ(d.scheduler().stats().rows.held, 0);
  d.expect_sound();
}

// Nobody says how many drafts of its last step counted, so nobody knows where its state stands.
TEST(Scheduler, TheStateOfARequestCancelledAmongDraftsIsNotKept) {
  for (const bool told : {false, true}) {
    Driver d(kLimits, kCache);
    const RequestId id = d.add(ids_of(1, 10), 50);
    while (d.scheduler().ids(id).size() < 30) d.step();
    Script ahead = d.model().script(id);
    for (int n = 0; n < 7; ++n) {
      d.model().script(id).drafts.push_back(FakeModel::next_token(ahead));
      ahead.add(FakeModel::next_token(ahead));
    }
    d.scheduler().set_drafts(id, 7);
    const StepPlan p = d.plan();
    ASSERT_EQ(p.parts[0].tokens, 8);  // positions 29 to 36: the state may or may not have moved to 32
    const std::vector<Outcome> outcomes = d.model().run(d.scheduler(), p);
    d.scheduler().cancel(id);
    d.scheduler().commit(p, told ? std::span(outcomes) : std::span<const Outcome>());
    d.expect_sound();
    EXPECT_EQ(d.scheduler().stats().rows.snapshots, told ? 1 : 0);
  }
}

// Drafts must not cost the prefix cache its hits, nor may a state behind rejected tokens be kept.
TEST(Scheduler, DraftsLeaveHitsAndStatesAsTheyAre) {
  Driver d(kLimits, kCache);
  const std::vector<int32_t> prompt = ids_of(1, 500);
  for (int round = 0; round < 4; ++round) {
    const RequestId id = d.add(prompt, 40);
    int64_t tokens_max = 0;
    while (d.scheduler().contains(id)) {
      Script& s = d.model().script(id);
      Script ahead = s;
      s.drafts.clear();
      for (int n = 0; n < 7; ++n) {
        s.drafts.push_back(n == 4 ? 5 : FakeModel::next_token(ahead));  // the fifth is wrong
        ahead.add(s.drafts.back());
      }
      d.scheduler().set_drafts(id, 7);
      const StepPlan p = d.step();
      if (p.parts[0].position >= 500) tokens_max = std::max(tokens_max, p.parts[0].tokens);
      if (p.parts[0].position < 500) {
        EXPECT_EQ(p.parts[0].position, round == 0 ? 0 : 496);
      }
    }
    EXPECT_EQ(tokens_max, 8);
    EXPECT_EQ(d.said(id).size(), 540u);
    const RequestId next = d.add(joined(d.said(id), ids_of(9 + round, 20)));
    const StepPlan p = d.plan();
    EXPECT_EQ(d.scheduler().cached_tokens(next), 539 / 16 * 16);
    d.scheduler().cancel(next);
    d.commit(p);
  }
}

TEST(Scheduler, WhatIsPreemptedSaysTheSame) {
  const auto answers = [](int64_t rows) {
    Driver d({4, 128, 1000, 100}, {rows, 64, 2, 16});
    std::vector<RequestId> ids;
    for (int32_t n = 0; n < 4; ++n) ids.push_back(d.add(ids_of(n, 40), 500));
    d.run_until_idle();
    std::vector<std::vector<int32_t>> said;
    for (const RequestId id : ids) said.push_back(d.said(id));
    return std::pair(said, d.scheduler().stats().preemptions);
  };
  const auto roomy = answers(100);
  const auto tight = answers(22);
  EXPECT_EQ(roomy.second, 0);
  EXPECT_GT(tight.second, 0);
  EXPECT_EQ(roomy.first, tight.first);
}

}  // namespace
}  // namespace perigee::sched
