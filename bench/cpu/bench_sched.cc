// What the scheduler costs beside the model: plan and commit of steps over many long contexts, hashing and indexing
// included.
//
//   perigee_bench_sched [--requests N] [--context N] [--steps N] [--block-tokens N]
//
// Method. N requests with contexts of their own are taken in by a pool that holds them all. Then every step plans one
// part a request and commits 1 to 8 tokens for each (all but the first as accepted drafts); outcomes are drawn before the
// clock starts. A run is a number of steps; reported is the median of five runs after one to warm up, in microseconds of
// processor time per running request and step.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>

#include "base/rng.h"
#include "sched/scheduler.h"

namespace perigee::bench {
namespace {

using sched::Outcome;
using sched::Scheduler;

// Of this thread: the machine may be busy with other things.
double cpu_seconds() {
  timespec t = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

constexpr int kRuns = 5;
constexpr int64_t kTokensMax = 8;

struct Shape {
  int64_t requests = 256;
  int64_t context = 100'000;
  int64_t steps = 400;
  int64_t block_tokens = 64;
};

int32_t random_id(uint64_t key, uint64_t n) { return static_cast<int32_t>(random_bits(key, n) % 160'000); }

void fill(Scheduler& scheduler, const Shape& shape, int64_t answer) {
  for (int64_t r = 0; r < shape.requests; ++r) {
    sched::ScheduleRequest request;
    request.id = static_cast<uint64_t>(r + 1);
    for (int64_t i = 0; i < shape.context; ++i)
      request.prompt.push_back(random_id(request.id, static_cast<uint64_t>(i)));
    request.max_tokens = answer;
    CHECK(scheduler.submit(std::move(request)).ok());
  }
  int64_t sampled = 0;
  while (sampled < shape.requests) {
    const sched::StepPlan& plan = scheduler.plan();
    std::vector<Outcome> outcomes;
    for (const sched::PlanPart& p : plan.parts) {
      if (!p.sample) continue;
      outcomes.emplace_back().request = p.request;
      outcomes.back().add(1);
      sampled += p.position + p.tokens == shape.context ? 1 : 0;
    }
    scheduler.commit(plan, outcomes);
  }
}

// Seconds of `steps` steps, and the tokens that they committed.
double run(Scheduler& scheduler, const Shape& shape, uint64_t seed, int64_t& committed) {
  std::vector<std::vector<Outcome>> outcomes(static_cast<size_t>(shape.steps));
  uint64_t draw = 0;
  for (std::vector<Outcome>& step : outcomes) {
    for (int64_t r = 0; r < shape.requests; ++r) {
      Outcome& o = step.emplace_back();
      const int64_t count = 1 + static_cast<int64_t>(random_bits(seed, draw++) % kTokensMax);
      for (int64_t i = 0; i < count; ++i) o.add(random_id(seed, draw++));
      o.accepted = o.count;
      committed += count;
    }
  }
  double seconds = 0;
  for (std::vector<Outcome>& step : outcomes) {
    const double start = cpu_seconds();
    for (int64_t r = 0; r < shape.requests; ++r) scheduler.set_drafts(static_cast<uint64_t>(r + 1), kTokensMax - 1);
    const sched::StepPlan& plan = scheduler.plan();
    const double planned = cpu_seconds();
    CHECK_EQ(plan.parts.size(), step.size());
    for (size_t i = 0; i < step.size(); ++i) step[i].request = plan.parts[i].request;
    const double ready = cpu_seconds();
    scheduler.commit(plan, step);
    seconds += cpu_seconds() - ready + planned - start;
  }
  return seconds;
}

int measure(const Shape& shape) {
  const int64_t answer = (kRuns + 1) * shape.steps * kTokensMax + 16;
  cache::CacheOptions cache;
  cache.block_tokens = shape.block_tokens;
  cache.groups = 3;
  cache.rows = shape.requests * ((shape.context + answer) / shape.block_tokens + 1 + cache.groups + 8);
  sched::SchedulerLimits limits;
  limits.max_num_seqs = shape.requests;
  limits.max_num_batched_tokens = std::max<int64_t>(8192, shape.requests * kTokensMax);
  limits.max_model_len = shape.context + answer;
  Result<std::unique_ptr<Scheduler>> made = Scheduler::create(limits, cache);
  if (!made.ok()) {
    fmt::print(stderr, "perigee_bench_sched: {}\n", made.error().message);
    return 2;
  }
  Scheduler& scheduler = **made;
  fill(scheduler, shape, answer);
  std::vector<double> times;
  int64_t committed = 0;
  run(scheduler, shape, 0, committed);
  committed = 0;
  for (int i = 0; i < kRuns; ++i) times.push_back(run(scheduler, shape, static_cast<uint64_t>(i + 1), committed));
  std::sort(times.begin(), times.end());
  const auto per_request = [&](double seconds) {
    return 1e6 * seconds / static_cast<double>(shape.steps * shape.requests);
  };
  const double tokens = static_cast<double>(committed) / static_cast<double>(kRuns * shape.steps * shape.requests);
  fmt::print(
      "{} requests of {} tokens, blocks of {}, {} steps x {} runs, {:.2f} tokens committed per request and step\n",
      shape.requests, shape.context, shape.block_tokens, shape.steps, kRuns, tokens);
  fmt::print("plan + commit: {:.3f} us per request and step (median; best {:.3f}, worst {:.3f})\n",
             per_request(times[kRuns / 2]), per_request(times.front()), per_request(times.back()));
  return 0;
}

}  // namespace
}  // namespace perigee::bench

int main(int argc, char** argv) {
  perigee::bench::Shape shape;
  CLI::App app("Cost of the scheduler beside the model");
  app.add_option("--requests", shape.requests, "running requests")->check(CLI::PositiveNumber);
  app.add_option("--context", shape.context, "tokens of each context")->check(CLI::PositiveNumber);
  app.add_option("--steps", shape.steps, "steps of a run")->check(CLI::PositiveNumber);
  app.add_option("--block-tokens", shape.block_tokens, "tokens of a cache row")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return perigee::bench::measure(shape);
}
