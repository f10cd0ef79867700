#include "engine/service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/memory.h"
#include "engine/record.h"
#include "engine/request_check.h"
#include "engine/runner.h"
#include "engine/service_memory.h"
#include "engine/verifier.h"

namespace perigee::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSeqsDefault = 64;
constexpr auto kBeat = std::chrono::milliseconds(200);

// A request between submit() and its last update.
struct Live {
  TokenRequest request;
  OnUpdate on_update;
  std::unique_ptr<LogitEditor> editor;
  std::vector<int32_t> made;
  std::vector<double> logprobs;                     // of the made tokens, of the unmodified distribution
  std::vector<std::optional<TokenLogprob>> prompt;  // positions scored so far
  Clock::time_point submitted = Clock::now();
  RequestTimes times;
  bool prompt_sent = false;
  bool verifying = false;  // a finished request that runs again: its log-probabilities are compared
};

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

// Asked for by the caller. tokens: of a whole answer; none: it is not wanted.
struct Ending {
  RequestKey key = 0;
  std::optional<int64_t> tokens;
};

}  // namespace

struct Service::Loop {
  const Engine& engine;
  ServiceOptions options;
  BackendInfo info;
  std::unique_ptr<Runner> runner;
  std::unique_ptr<sched::Scheduler> scheduler;
  std::unique_ptr<RecordWriter> records;  // none: nothing is recorded
  ModelIdentity identity;                 // while something is
  int64_t state_groups = 0;

  // Shared with callers.
  mutable std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::pair<RequestKey, std::unique_ptr<Live>>> submitted;
  std::vector<Ending> endings;
  bool stop = false;
  bool paused = false;
  bool draining = false;
  uint64_t epoch = 0;  // of the prefix cache: raised when it is reset
  RequestKey next_key = 1;
  BackendState snapshot;
  std::atomic<uint64_t> beats{0};
  std::atomic<Clock::rep> last_beat{Clock::now().time_since_epoch().count()};

  // The thread's own.
  std::unordered_map<RequestKey, std::unique_ptr<Live>> live;
  std::unique_ptr<Verifier> verifier;
  BackendState counts;
  uint64_t epoch_now = 0;
  bool stalled = false;
  std::thread thread;

  explicit Loop(const Engine& e) : engine(e) {}

  void beat() {
    beats.fetch_add(1, std::memory_order_relaxed);
    last_beat.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }

  void ask(Ending ending) {
    {
      std::lock_guard lock(mutex);
      endings.push_back(ending);
    }
    wake.notify_one();
  }

  void run();
  bool take_messages();
  void start(RequestKey key, std::unique_ptr<Live> request);
  void step();
  void mark_begun(const sched::StepPlan& plan);
  void score_prompts(const sched::StepPlan& plan);
  void end(RequestKey key, RequestEnd how, std::string error);
  void verify_next();
  void keep_answer(RequestKey key, Live& request, int64_t tokens);
  void finished(RequestKey key, Live& request, RequestEnd how);
  void publish();
};

bool Service::Loop::take_messages() {
  std::deque<std::pair<RequestKey, std::unique_ptr<Live>>> fresh;
  std::vector<Ending> asked;
  {
    std::unique_lock lock(mutex);
    const auto work = [&] { return stop || !submitted.empty() || !endings.empty() || (!paused && !scheduler->idle()); };
    while (!work()) {
      beat();
      if (!paused && !verifier->idle()) break;
      wake.wait_for(lock, kBeat);
    }
    if (stop) return false;
    epoch_now = epoch;
    fresh.swap(submitted);
    asked.swap(endings);
  }
  beat();
  for (auto& [key, request] : fresh) start(key, std::move(request));
  for (const Ending& ending : asked) {
    const auto found = live.find(ending.key);
    if (found == live.end()) continue;
    scheduler->cancel(ending.key);
    if (ending.tokens.has_value()) keep_answer(ending.key, *found->second, *ending.tokens);
    end(ending.key, RequestEnd::kAbort, {});
  }
  return true;
}

void Service::Loop::start(RequestKey key, std::unique_ptr<Live> request) {
  const TokenRequest& r = request->request;
  request->editor = std::make_unique<LogitEditor>(r.sampling, r.prompt, r.stop_ids, r.constraint);
  sched::ScheduleRequest s;
  s.id = key;
  s.prompt = r.prompt;
  s.max_tokens = r.max_tokens;
  s.priority = r.priority;
  s.session = r.session.empty() ? fmt::format("#{}", key) : r.session;
  s.salt = options.prefix_caching ? fmt::format("{}:{}", epoch_now, r.cache_salt) : fmt::format("#{}", key);
  s.skip_prefix = r.prompt_logprobs >= 0;
  const Status submitted_now = scheduler->submit(std::move(s));
  live.emplace(key, std::move(request));
  if (!submitted_now.ok()) end(key, RequestEnd::kError, submitted_now.error().message);
}

void Service::Loop::end(RequestKey key, RequestEnd how, std::string error) {
  const auto found = live.find(key);
  CHECK(found != live.end());
  const std::unique_ptr<Live> request = std::move(found->second);
  live.erase(found);
  if (request->verifying) return;
  TokenUpdate update;
  update.finish = how;
  update.error = std::move(error);
  update.times = request->times;
  request->on_update(std::move(update));
}

void Service::Loop::mark_begun(const sched::StepPlan& plan) {
  for (const sched::PlanPart& p : plan.parts) {
    const auto found = live.find(p.request);
    if (found == live.end() || found->second->times.first_step >= 0) continue;
    found->second->times.first_step = seconds_since(found->second->submitted);
  }
}

// Rows of parts whose prompt tokens' log-probabilities are wanted. A preempted request passes its prompt again.
void Service::Loop::score_prompts(const sched::StepPlan& plan) {
  int64_t row = 0;
  for (const sched::PlanPart& p : plan.parts) {
    const int64_t first_row = row;
    row += p.tokens;
    const auto found = live.find(p.request);
    if (found == live.end() || found->second->request.prompt_logprobs < 0) continue;
    Live& l = *found->second;
    const auto length = static_cast<int64_t>(l.request.prompt.size());
    if (l.prompt.empty()) l.prompt.emplace_back(std::nullopt);
    const int64_t begin = std::max(p.position + 1, static_cast<int64_t>(l.prompt.size()));
    const int64_t end = std::min(p.position + p.tokens + 1, length);
    if (begin >= end) continue;
    const std::span<const int32_t> targets =
        std::span(l.request.prompt).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    for (TokenLogprob& t : runner->score(first_row + begin - p.position - 1, targets, l.request.prompt_logprobs)) {
      l.prompt.emplace_back(std::move(t));
    }
  }
}

void Service::Loop::step() {
  const sched::StepPlan& plan = scheduler->plan();
  if (plan.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return;
  }
  mark_begun(plan);
  runner->run(plan, *scheduler);
  score_prompts(plan);
  std::vector<Draw> draws;
  std::vector<RequestKey> keys;
  int64_t row = 0;
  for (const sched::PlanPart& p : plan.parts) {
    row += p.tokens;
    const auto found = live.find(p.request);
    const bool verifying = found != live.end() && found->second->verifying;  // work of ours, which nobody asked for
    if (!verifying) counts.prompt_tokens += static_cast<uint64_t>(p.sample ? p.tokens - 1 : p.tokens);
    if (!p.sample || found == live.end()) continue;
    Live& l = *found->second;
    draws.push_back({row - 1, p.position + p.tokens, &l.request, l.editor.get(), l.made});
    keys.push_back(p.request);
  }
  std::vector<TokenLogprob> tokens = runner->draw(draws);
  std::vector<sched::Outcome> outcomes;
  std::vector<std::pair<RequestKey, TokenUpdate>> updates;
  for (size_t i = 0; i < keys.size(); ++i) {
    Live& l = *live.at(keys[i]);
    const int32_t id = tokens[i].id;
    l.made.push_back(id);
    l.logprobs.push_back(tokens[i].model_logprob);
    TokenUpdate update;
    update.cached_tokens = scheduler->cached_tokens(keys[i]);
    update.tokens.push_back(std::move(tokens[i]));
    l.times.last_token = seconds_since(l.submitted);
    if (l.times.first_token < 0) l.times.first_token = l.times.last_token;
    update.times = l.times;
    if (!l.prompt_sent && l.request.prompt_logprobs >= 0) update.prompt = std::move(l.prompt);
    l.prompt_sent = true;
    const std::vector<int32_t>& stops = l.request.stop_ids;
    if (std::find(stops.begin(), stops.end(), id) != stops.end()) {
      update.finish = RequestEnd::kStop;
    } else if (static_cast<int64_t>(l.made.size()) == l.request.max_tokens) {
      update.finish = RequestEnd::kLength;
    }
    sched::Outcome outcome;
    outcome.request = keys[i];
    outcome.add(id);
    outcome.finished = update.finish.has_value();
    outcomes.push_back(outcome);
    updates.emplace_back(keys[i], std::move(update));
  }
  scheduler->commit(plan, outcomes);
  ++counts.steps;
  for (const auto& [key, update] : updates) counts.generated_tokens += live.at(key)->verifying ? 0 : 1;
  publish();
  for (auto& [key, update] : updates) {
    Live& l = *live.at(key);
    const std::optional<RequestEnd> finish = update.finish;
    if (l.verifying) {
      verifier->check(update.prompt);
    } else {
      l.on_update(std::move(update));
    }
    if (!finish) continue;
    if (!l.verifying) finished(key, l, *finish);
    live.erase(key);
  }
}

// Scores a finished request from its first token on, without the prefix cache.
void Service::Loop::verify_next() {
  std::optional<TokenRequest> request = verifier->next();
  if (!request.has_value()) return;
  auto again = std::make_unique<Live>();
  again->request = std::move(*request);
  again->verifying = true;
  RequestKey key = 0;
  {
    std::lock_guard lock(mutex);
    key = next_key++;
  }
  start(key, std::move(again));
}

// What a request for just these tokens would have come to.
void Service::Loop::keep_answer(RequestKey key, Live& l, int64_t tokens) {
  const auto count = static_cast<size_t>(tokens);
  if (tokens < 1 || count > l.made.size()) return;
  l.made.resize(count);
  l.logprobs.resize(count);
  l.request.max_tokens = tokens;
  l.request.sampling.min_tokens = std::min(l.request.sampling.min_tokens, tokens);
  finished(key, l, RequestEnd::kLength);
}

// Records what a request has come to, and notes it for verification in its turn.
void Service::Loop::finished(RequestKey key, Live& l, RequestEnd how) {
  if (records != nullptr) {
    RequestRecord out = record_of(l.request, l.made, l.logprobs, how);
    out.key = key;
    out.identity = identity;
    out.vocab = info.vocab;
    records->push(std::move(out));
  }
  verifier->offer(l.request.prompt, l.made, std::move(l.logprobs));
}

void Service::Loop::publish() {
  const sched::SchedulerStats stats = scheduler->stats();
  counts.running = stats.running;
  counts.waiting = stats.waiting;
  counts.cache_usage = static_cast<double>(stats.rows.held) / static_cast<double>(std::max<int64_t>(stats.rows.rows, 1));
  counts.verified = verifier->verified();
  counts.mismatches = verifier->mismatches();
  counts.preemptions = static_cast<uint64_t>(stats.preemptions);
  counts.prefix_queries = static_cast<uint64_t>(stats.prefix_queries);
  counts.prefix_hits = static_cast<uint64_t>(stats.prefix_hits);
  std::lock_guard lock(mutex);
  snapshot = counts;
}

void Service::Loop::run() {
  while (take_messages()) {
    const bool held = [&] {
      std::lock_guard lock(mutex);
      return paused;
    }();
    if (held) continue;
    if (scheduler->idle() && !verifier->idle()) verify_next();
    if (!scheduler->idle()) step();
    publish();
    if (options.stall_seconds > 0 && counts.steps > 0 && !stalled) {
      stalled = true;
      std::this_thread::sleep_for(std::chrono::duration<double>(options.stall_seconds));
    }
  }
  while (!live.empty()) end(live.begin()->first, RequestEnd::kAbort, {});
  std::deque<std::pair<RequestKey, std::unique_ptr<Live>>> never_begun;
  {
    std::lock_guard lock(mutex);
    never_begun.swap(submitted);
  }
  for (auto& [key, request] : never_begun) {
    TokenUpdate update;
    update.finish = RequestEnd::kAbort;
    request->on_update(std::move(update));
  }
}

Result<std::unique_ptr<Service>> Service::create(const Engine& engine, const ServiceOptions& options) {
  auto loop = std::make_unique<Loop>(engine);
  loop->options = options;
  ServiceOptions& o = loop->options;
  if (o.max_num_seqs == 0) o.max_num_seqs = kSeqsDefault;
  if (o.max_num_batched_tokens == 0) o.max_num_batched_tokens = std::max(engine.batched_tokens(), o.max_num_seqs);
  if (o.max_num_batched_tokens < o.max_num_seqs) {
    return invalid_argument("--max-num-batched-tokens {} is below --max-num-seqs {}: a step must have a token for each sequence",
                            o.max_num_batched_tokens, o.max_num_seqs);
  }
  const model::Config& c = engine.config();
  if (o.max_model_len > c.positions_max) {
    return invalid_argument("--max-model-len {} is above the model's {} positions (max_position_embeddings of {})",
                            o.max_model_len, c.positions_max, c.path);
  }
  const model::StateLayout layout = model::make_state_layout(c, engine.device(), engine.formats());
  const Result<PoolSize> pool = plan_pool(engine, layout, o);
  if (!pool.ok()) return pool.error();
  const auto [rows, length] = *pool;
  Result<std::unique_ptr<Runner>> runner =
      Runner::create(engine, {rows, o.max_num_seqs, o.max_num_batched_tokens, length, o.prefault_cache});
  if (!runner.ok()) return runner.error();
  loop->runner = std::move(*runner);
  const sched::SchedulerLimits limits = {o.max_num_seqs, o.max_num_batched_tokens, length, o.waiting_max};
  const cache::CacheOptions cache = {rows, layout.block_tokens(), layout.state_groups, o.match_unit};
  Result<std::unique_ptr<sched::Scheduler>> scheduler = sched::Scheduler::create(limits, cache);
  if (!scheduler.ok()) return scheduler.error();
  loop->scheduler = std::move(*scheduler);
  loop->info = {c.path, length, c.vocab, layout.block_tokens(), rows, rows * layout.block_tokens(),
                format_name(engine.formats().latent), format_name(engine.formats().key)};
  loop->verifier = std::make_unique<Verifier>(o.verify_fraction, length);
  if (!o.record_dir.empty()) {
    const Status folder = check_record_folder(o.record_dir, "--record");
    if (!folder.ok()) return folder.error();
    Result<ModelIdentity> identity = identify(engine);
    if (!identity.ok()) return identity.error();
    loop->identity = std::move(*identity);
    loop->records = std::make_unique<RecordWriter>(o.record_dir, o.on_record_failure);
  }
  Loop* const l = loop.get();
  l->runner->on_layer([l] { l->beat(); });
  std::unique_ptr<Service> service(new Service(std::move(loop)));
  l->thread = std::thread([l] { l->run(); });
  return service;
}

Service::Service(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

Service::~Service() {
  {
    std::lock_guard lock(loop_->mutex);
    loop_->stop = true;
  }
  loop_->wake.notify_all();
  loop_->thread.join();
}

const BackendInfo& Service::info() const { return loop_->info; }

BackendState Service::state() const {
  std::lock_guard lock(loop_->mutex);
  BackendState s = loop_->snapshot;
  s.beats = loop_->beats.load();
  const Clock::duration age = Clock::now().time_since_epoch() - Clock::duration(loop_->last_beat.load());
  s.beat_age_s = std::chrono::duration<double>(age).count();
  s.waiting += static_cast<int64_t>(loop_->submitted.size());
  s.draining = loop_->draining;
  s.paused = loop_->paused;
  return s;
}

Result<RequestKey> Service::submit(TokenRequest request, OnUpdate on_update) {
  const Status checked = check_request(loop_->engine, loop_->info, request);
  if (!checked.ok()) return checked.error();
  auto live = std::make_unique<Live>();
  live->request = std::move(request);
  live->on_update = std::move(on_update);
  RequestKey key = 0;
  {
    std::lock_guard lock(loop_->mutex);
    if (loop_->draining || loop_->stop) return resource_exhausted("the engine is shutting down and takes no more requests");
    const int64_t queued = loop_->snapshot.waiting + static_cast<int64_t>(loop_->submitted.size());
    if (queued >= loop_->options.waiting_max) {
      return resource_exhausted("{} requests wait already, the queue takes no more (try again later)", queued);
    }
    key = loop_->next_key++;
    loop_->submitted.emplace_back(key, std::move(live));
  }
  loop_->wake.notify_all();
  return key;
}

void Service::cancel(RequestKey key) { loop_->ask({key, std::nullopt}); }

void Service::complete(RequestKey key, int64_t tokens) { loop_->ask({key, tokens}); }

void Service::drain() {
  std::lock_guard lock(loop_->mutex);
  loop_->draining = true;
}

void Service::pause(bool paused) {
  {
    std::lock_guard lock(loop_->mutex);
    loop_->paused = paused;
  }
  loop_->wake.notify_all();
}

// What was indexed under the old epoch is never found again and ages out.
void Service::reset_prefix_cache() {
  std::lock_guard lock(loop_->mutex);
  ++loop_->epoch;
}

}  // namespace perigee::engine
