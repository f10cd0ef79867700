// Who goes first: decode before prompts, shares of the budget, priorities, sessions, overtaking and preemption.
#include "sched/test_driver.h"

namespace perigee::sched {
namespace {

const cache::CacheOptions kCache = {400, 64, 2, 16};

ScheduleRequest with_priority(int64_t priority) {
  ScheduleRequest r;
  r.priority = priority;
  return r;
}
ScheduleRequest of_session(const std::string& session) {
  ScheduleRequest r;
  r.session = session;
  return r;
}

TEST(Policy, GenerationComesFirstAndPromptsGetTheRest) {
  Driver d({4, 100, 5000, 100}, kCache);
  const RequestId a = d.add(ids_of(1, 50), 20);
  d.step();
  const RequestId b = d.add(ids_of(2, 1000));
  const StepPlan p = d.step();
  ASSERT_EQ(p.parts.size(), 2u);
  EXPECT_EQ(p.parts[0].request, a);
  EXPECT_EQ(p.parts[0].tokens, 1);
  EXPECT_EQ(p.parts[1].request, b);
  EXPECT_EQ(p.parts[1].tokens, 99);
}

TEST(Policy, AShortPromptGetsAQuarterBesideALongOne) {
  Driver d({4, 400, 10'000, 100}, kCache);
  const RequestId long_one = d.add(ids_of(1, 9000));
  d.step();
  const RequestId short_one = d.add(ids_of(2, 250));
  StepPlan p = d.step();
  EXPECT_EQ(part_of(p, long_one)->tokens, 300);
  EXPECT_EQ(part_of(p, short_one)->tokens, 100);
  for (int i = 0; i < 2; ++i) p = d.step();
  EXPECT_TRUE(d.finished(short_one));
}

TEST(Policy, APromptOfTheSameLengthWaitsUntilThereIsRoomForIt) {
  Driver d({4, 400, 10'000, 100}, kCache);
  const RequestId first = d.add(ids_of(1, 2000));
  const RequestId second = d.add(ids_of(2, 2000));
  StepPlan p = d.step();
  EXPECT_EQ(part_of(p, second), nullptr);
  while (part_of(p, second) == nullptr) p = d.step();
  EXPECT_GE(part_of(p, second)->tokens, 1);
  EXPECT_TRUE(d.finished(first) || part_of(p, first) != nullptr);
}

TEST(Policy, ABetterPriorityTakesTheBudget) {
  Driver d({4, 400, 10'000, 100}, kCache);
  const RequestId low = d.add(ids_of(1, 4000), 1, with_priority(5));
  d.step();
  const RequestId high = d.add(ids_of(2, 4000), 1, with_priority(0));
  const StepPlan p = d.step();
  EXPECT_EQ(part_of(p, high)->tokens, 400);
  EXPECT_EQ(part_of(p, low), nullptr);
}

TEST(Policy, SessionsTakeTurns) {
  Driver d({1, 64, 1000, 100}, kCache);
  std::vector<RequestId> crowd;
  for (int32_t n = 0; n < 4; ++n) crowd.push_back(d.add(ids_of(n, 50), 1, of_session("crowd")));
  const RequestId single = d.add(ids_of(9, 50), 1, of_session("single"));
  std::vector<RequestId> order;
  while (!d.scheduler().idle()) {
    for (const PlanPart& part : d.step().parts) {
      if (order.empty() || order.back() != part.request) order.push_back(part.request);
    }
  }
  EXPECT_EQ(order, (std::vector<RequestId>{crowd[0], single, crowd[1], crowd[2], crowd[3]}));
}

TEST(Policy, ANewSessionStartsAtTheLeastServed) {
  Sessions s;
  const int32_t a = s.enter("a");
  s.serve(a, 1000);
  const int32_t b = s.enter("b");
  EXPECT_EQ(s.served(b), 1000);
  s.serve(b, 500);
  EXPECT_EQ(s.enter("a"), a);
  EXPECT_EQ(s.served(s.enter("c")), 1000);
  s.leave(a);
  s.leave(a);
  EXPECT_EQ(s.active(), 2);
  EXPECT_EQ(s.served(s.enter("a")), 1000);  // it saved up nothing
}

TEST(Policy, OrderOfThoseThatWait) {
  Sessions sessions;
  Waiting waiting;
  std::vector<std::unique_ptr<Request>> requests;
  const auto add = [&](int64_t priority, const char* session, bool preempted) {
    Request& r = *requests.emplace_back(std::make_unique<Request>(cache::Key(), 16));
    r.id = requests.size();
    r.arrival = r.id;
    r.priority = priority;
    r.preempted = preempted;
    r.session = sessions.enter(session);
    waiting.add(r);
  };
  add(1, "busy", false);
  add(1, "idle", false);
  add(0, "busy", false);
  add(1, "busy", true);
  add(1, "idle", false);
  sessions.serve(sessions.enter("busy"), 10);
  std::vector<RequestId> order;
  waiting.start_walk(sessions);
  while (const Request* r = waiting.next(sessions)) {
    order.push_back(r->id);
    if (r->id == 2) sessions.serve(r->session, 100);  // now the other session is next
  }
  EXPECT_EQ(order, (std::vector<RequestId>{3, 4, 2, 1, 5}));
}

// A request that needs most of the pool is passed by small ones for a while, and then it is its turn.
TEST(Policy, AHugeRequestIsOvertakenForAWhileOnly) {
  Driver d({4, 256, 3000, 500}, {50, 64, 1, 16});
  for (int32_t n = 0; n < 3; ++n) d.add(ids_of(100 + n, 40), 30);
  d.step();
  const RequestId huge = d.add(ids_of(1, 2900), 10);
  int64_t overtook = 0;
  for (int32_t n = 0; !d.finished(huge) && n < 3000; ++n) {
    while (d.scheduler().waiting() < 5) d.add(ids_of(200 + n, 40), 10 + n % 5);
    const int64_t before = d.scheduler().running();
    const StepPlan p = d.step();
    if (part_of(p, huge) == nullptr) overtook += std::max<int64_t>(0, static_cast<int64_t>(p.parts.size()) - before);
  }
  EXPECT_TRUE(d.finished(huge));
  EXPECT_GT(overtook, 0);
  EXPECT_LE(overtook, 64 + 4);
}

TEST(Policy, TheWorstIsPreemptedAndTheBestNever) {
  Driver d({4, 128, 1000, 100}, {20, 64, 1, 16});
  const RequestId best = d.add(ids_of(1, 40), 500, with_priority(0));
  const RequestId middle = d.add(ids_of(2, 40), 500, with_priority(1));
  const RequestId worst = d.add(ids_of(3, 40), 500, with_priority(1));
  bool middle_alone_with_best = false;
  while (!d.scheduler().idle()) {
    const StepPlan p = d.step();
    if (!d.finished(best)) {
      ASSERT_NE(part_of(p, best), nullptr);
      if (part_of(p, worst) == nullptr && part_of(p, middle) != nullptr) middle_alone_with_best = true;
      EXPECT_FALSE(part_of(p, worst) != nullptr && part_of(p, middle) == nullptr && !d.finished(middle));
    }
  }
  EXPECT_GT(d.scheduler().stats().preemptions, 0);
  EXPECT_TRUE(middle_alone_with_best);
  EXPECT_TRUE(d.finished(best) && d.finished(middle) && d.finished(worst));
}

TEST(Policy, ARequestThatFillsThePoolRunsAlone) {
  Driver d({4, 128, 1000, 100}, {13, 64, 3, 16});
  const RequestId a = d.add(ids_of(1, 500), 141);  // ten blocks: all of it
  const RequestId b = d.add(ids_of(1, 600), 41);
  d.run_until_idle();
  EXPECT_TRUE(d.finished(a) && d.finished(b));
}

TEST(Policy, DraftsLeaveAQuarterOfTheBudgetToPrompts) {
  Driver d({8, 64, 2000, 100}, kCache);
  for (int32_t n = 0; n < 7; ++n) d.add(ids_of(n, 9), 200);
  StepPlan p = d.step();
  while (p.parts.size() < 7 || p.parts[0].tokens > 1) p = d.step();
  d.add(ids_of(50, 1000));
  for (RequestId id = 1; id <= 7; ++id) {
    d.model().script(id).drafts.assign(7, 3);
    d.scheduler().set_drafts(id, 7);
  }
  p = d.step();
  EXPECT_EQ(p.parts.size(), 8u);
  EXPECT_GE(p.parts.back().tokens, 16);
}

}  // namespace
}  // namespace perigee::sched
