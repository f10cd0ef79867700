#include "engine/service.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <numeric>

#include "base/rng.h"

namespace perigee::engine {
namespace {

constexpr auto kDemo = PERIGEE_SOURCE_DIR "/models/demo";

const Engine& demo() {
  static const std::unique_ptr<Engine> engine = [] {
    EngineOptions o;
    o.model = kDemo;
    o.threads = 2;
    return std::move(Engine::open(o)).value();
  }();
  return *engine;
}

// What one request gave, filled from the engine's thread.
class Answer {
 public:
  OnUpdate sink() {
    return [this](TokenUpdate&& u) {
      std::lock_guard lock(mutex_);
      for (TokenLogprob& t : u.tokens) tokens.push_back(std::move(t));
      if (!u.prompt.empty()) prompt = std::move(u.prompt);
      if (!u.tokens.empty()) cached = u.cached_tokens;
      if (!u.finish.has_value()) return;
      EXPECT_FALSE(finish.has_value()) << "two ends";
      finish = u.finish;
      done_.notify_all();
    };
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(done_.wait_for(lock, std::chrono::seconds(120), [&] { return finish.has_value(); }));
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return tokens.size();
  }

  std::vector<TokenLogprob> tokens;
  std::vector<std::optional<TokenLogprob>> prompt;
  int64_t cached = 0;
  std::optional<RequestEnd> finish;

 private:
  std::mutex mutex_;
  std::condition_variable done_;
};

std::vector<int32_t> random_ids(uint64_t seed, int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(random_bits(seed, static_cast<uint64_t>(i)) % 1900));
  return ids;
}

TokenRequest request_of(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t seed) {
  TokenRequest r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.seed = seed;
  return r;
}

// The same request alone, in a pool of its own.
std::vector<GeneratedToken> alone(const TokenRequest& r) {
  GenerateRequest g;
  g.prompt = r.prompt;
  g.max_tokens = r.max_tokens;
  g.sampling.seed = r.sampling.seed;
  g.sampling.temperature = r.sampling.temperature;
  return std::move(const_cast<Engine&>(demo()).generate({g}, {})).value()[0].tokens;
}

void expect_bits(const Answer& answer, const TokenRequest& r, const std::string& what) {
  const std::vector<GeneratedToken> want = alone(r);
  ASSERT_EQ(answer.tokens.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(answer.tokens[i].id, want[i].id) << what << ", token " << i;
    EXPECT_EQ(answer.tokens[i].logprob, want[i].logprob) << what << ", token " << i;
  }
}

std::unique_ptr<Service> start(ServiceOptions o, int64_t rows) {
  const model::StateLayout layout = model::make_state_layout(demo().config(), demo().device(), demo().formats());
  o.cache_bytes = rows * layout.rows.row_bytes;
  return std::move(Service::create(demo(), o)).value();
}

void run_all(Service& service, const std::vector<TokenRequest>& requests, std::vector<Answer>& answers) {
  for (size_t i = 0; i < requests.size(); ++i) ASSERT_TRUE(service.submit(requests[i], answers[i].sink()).ok());
  for (Answer& a : answers) a.wait();
}

TEST(Service, ManyRequestsAtOnceGiveTheBitsOfEachAlone) {
  const std::unique_ptr<Service> service = start({}, 200);
  std::vector<TokenRequest> requests;
  for (uint64_t i = 0; i < 12; ++i) {
    requests.push_back(request_of(random_ids(i, 1 + static_cast<int64_t>(random_bits(77, i) % 700)), 12, i));
  }
  std::vector<Answer> answers(requests.size());
  run_all(*service, requests, answers);
  for (size_t i = 0; i < requests.size(); ++i) expect_bits(answers[i], requests[i], fmt::format("request {}", i));
}

TEST(Service, TheSamePromptAgainComputesItsLastTokensOnly) {
  const std::unique_ptr<Service> service = start({}, 60);
  for (const int64_t length : {1500, 1504, 1505, 17, 16, 1}) {
    const TokenRequest r = request_of(random_ids(static_cast<uint64_t>(length), length), 8, 3);
    for (int round = 0; round < 3; ++round) {
      Answer answer;
      ASSERT_TRUE(service->submit(r, answer.sink()).ok());
      answer.wait();
      EXPECT_EQ(answer.cached, round == 0 ? 0 : (length - 1) / 16 * 16) << "prompt of " << length;
      expect_bits(answer, r, fmt::format("prompt of {}, round {}", length, round));
    }
  }
}

TEST(Service, AConversationThatGrowsComputesWhatIsNew) {
  const std::unique_ptr<Service> service = start({}, 60);
  std::vector<int32_t> ids = random_ids(5, 700);
  for (uint64_t turn = 0; turn < 8; ++turn) {
    const TokenRequest r = request_of(ids, 20, turn);
    Answer answer;
    ASSERT_TRUE(service->submit(r, answer.sink()).ok());
    answer.wait();
    expect_bits(answer, r, fmt::format("turn {}", turn));
    if (turn > 0) {
      EXPECT_GE(answer.cached, static_cast<int64_t>(ids.size()) - 40 - 32) << "turn " << turn;
    }
    for (const TokenLogprob& t : answer.tokens) ids.push_back(t.id);
    const std::vector<int32_t> next = random_ids(100 + turn, 40);
    ids.insert(ids.end(), next.begin(), next.end());
  }
}

TEST(Service, RequestsThatStartTogetherShareTheirPrefixOnce) {
  const std::unique_ptr<Service> service = start({}, 120);
  const std::vector<int32_t> shared = random_ids(9, 1200);
  std::vector<TokenRequest> requests;
  for (uint64_t i = 0; i < 8; ++i) {
    std::vector<int32_t> ids = shared;
    const std::vector<int32_t> own = random_ids(50 + i, 30);
    ids.insert(ids.end(), own.begin(), own.end());
    requests.push_back(request_of(ids, 6, i));
  }
  std::vector<Answer> answers(requests.size());
  run_all(*service, requests, answers);
  for (size_t i = 0; i < requests.size(); ++i) expect_bits(answers[i], requests[i], fmt::format("request {}", i));
  EXPECT_GE(service->state().prefix_hits, 7U * 1184U);
}

TEST(Service, PreemptionAndEvictionChangeNoBit) {
  // Both prompts fit with room to begin; at their ends the two together need one row more than there are.
  const model::StateLayout layout = model::make_state_layout(demo().config(), demo().device(), demo().formats());
  const int64_t tokens = 3 * layout.block_tokens();
  ServiceOptions o;
  o.max_model_len = tokens + 50;
  const std::unique_ptr<Service> service = start(o, 2 * cache::rows_of_request(layout.rows, tokens + 50) - 1);
  std::vector<TokenRequest> requests;
  for (uint64_t i = 0; i < 2; ++i) requests.push_back(request_of(random_ids(20 + i, 50), tokens, i));
  std::vector<Answer> answers(requests.size());
  run_all(*service, requests, answers);
  for (size_t i = 0; i < requests.size(); ++i) expect_bits(answers[i], requests[i], fmt::format("request {}", i));
  EXPECT_GT(service->state().preemptions, 0U);
}

TEST(Service, PromptLogprobsAreThoseOfScoringWhateverIsCached) {
  const std::unique_ptr<Service> service = start({}, 60);
  TokenRequest r = request_of(random_ids(31, 900), 2, 1);
  Answer first;
  ASSERT_TRUE(service->submit(r, first.sink()).ok());
  first.wait();
  r.prompt_logprobs = 3;
  Answer scored;
  ASSERT_TRUE(service->submit(r, scored.sink()).ok());
  scored.wait();
  const ScoredSequence want = std::move(const_cast<Engine&>(demo()).score({r.prompt}, 3)).value()[0];
  ASSERT_EQ(scored.prompt.size(), r.prompt.size());
  EXPECT_FALSE(scored.prompt[0].has_value());
  for (size_t i = 1; i < r.prompt.size(); ++i) {
    ASSERT_TRUE(scored.prompt[i].has_value());
    EXPECT_EQ(scored.prompt[i]->id, r.prompt[i]);
    EXPECT_EQ(scored.prompt[i]->logprob, *want[i - 1].target_logprob) << i;
    EXPECT_EQ(scored.prompt[i]->top, want[i - 1].top) << i;
  }
}

TEST(Service, FinishedRequestsAreScoredAgainInIdleTime) {
  ServiceOptions o;
  o.verify_fraction = 1;
  const std::unique_ptr<Service> service = start(o, 60);
  for (uint64_t i = 0; i < 3; ++i) {
    Answer answer;
    ASSERT_TRUE(service->submit(request_of(random_ids(61, 300), 10, i), answer.sink()).ok());
    answer.wait();
  }
  for (int tries = 0; tries < 600 && service->state().verified < 3; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(service->state().generated_tokens, 30U);  // not what verification draws
  EXPECT_EQ(service->state().verified, 3U);
  EXPECT_EQ(service->state().mismatches, 0U);
}

TEST(Service, AThousandCancelsAtAnyMomentFreeEveryRow) {
  const std::unique_ptr<Service> service = start({}, 40);
  for (int i = 0; i < 1000; ++i) {
    Answer answer;
    const Result<RequestKey> key = service->submit(request_of(random_ids(7, 40), 2000, 1), answer.sink());
    ASSERT_TRUE(key.ok());
    while (i % 3 != 0 && answer.count() < static_cast<size_t>(i % 3)) std::this_thread::yield();
    service->cancel(*key);
    service->cancel(*key);
    answer.wait();
    EXPECT_EQ(answer.finish, RequestEnd::kAbort);
  }
  Answer last;
  ASSERT_TRUE(service->submit(request_of(random_ids(8, 40), 3, 1), last.sink()).ok());
  last.wait();
  EXPECT_EQ(last.finish, RequestEnd::kLength);
  for (int tries = 0; tries < 100 && service->state().cache_usage > 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(service->state().cache_usage, 0);
}

TEST(Service, WishesShapeTheDrawAndLeaveLogprobsOfTheModelAlone) {
  const std::unique_ptr<Service> service = start({}, 60);
  const std::vector<int32_t> prompt = random_ids(41, 64);
  const auto ask = [&](const std::function<void(TokenRequest&)>& change) {
    TokenRequest r = request_of(prompt, 6, 1);
    r.sampling.temperature = 0;
    change(r);
    Answer answer;
    EXPECT_TRUE(service->submit(r, answer.sink()).ok());
    answer.wait();
    return std::move(answer.tokens);
  };
  const std::vector<TokenLogprob> plain = ask([](TokenRequest&) {});
  const int32_t first = plain[0].id;
  const auto banned = ask([&](TokenRequest& r) { r.sampling.logit_bias = {{first, -1e9f}}; });
  EXPECT_NE(banned[0].id, first);
  const auto allowed = ask([&](TokenRequest& r) { r.sampling.allowed_ids = {11, 12}; });
  for (const TokenLogprob& t : allowed) EXPECT_TRUE(t.id == 11 || t.id == 12);
  EXPECT_LT(allowed[0].logprob, plain[0].logprob);
  const auto bad = ask([&](TokenRequest& r) { r.sampling.bad_words = {{first}}; });
  EXPECT_NE(bad[0].id, first);
  const auto pair = ask([&](TokenRequest& r) { r.sampling.bad_words = {{first, plain[1].id}}; });
  EXPECT_EQ(pair[0].id, first);
  EXPECT_NE(pair[1].id, plain[1].id);
  const auto stopped = ask([&](TokenRequest& r) { r.stop_ids = {first}; });
  EXPECT_EQ(stopped.size(), 1U);
  const auto later = ask([&](TokenRequest& r) {
    r.stop_ids = {first};
    r.sampling.min_tokens = 3;
  });
  EXPECT_GE(later.size(), 4U);
  const auto biased = ask([&](TokenRequest& r) { r.sampling.logit_bias = {{77, 1e4f}}; r.sampling.presence_penalty = 3e4; });
  EXPECT_EQ(biased[0].id, 77);
  EXPECT_NE(biased[1].id, 77);
}

TEST(Service, RefusesWhatCanNeverRun) {
  ServiceOptions o;
  o.max_model_len = 600;
  const std::unique_ptr<Service> service = start(o, 40);
  Answer unused;
  EXPECT_FALSE(service->submit(request_of({}, 1, 0), unused.sink()).ok());
  EXPECT_FALSE(service->submit(request_of({1}, 0, 0), unused.sink()).ok());
  EXPECT_FALSE(service->submit(request_of({1 << 20}, 1, 0), unused.sink()).ok());
  const Result<RequestKey> longer = service->submit(request_of(random_ids(1, 600), 1, 0), unused.sink());
  ASSERT_FALSE(longer.ok());
  EXPECT_NE(longer.error().message.find("maximum context length"), std::string::npos);
  EXPECT_FALSE(service->submit(request_of({1}, INT64_MAX, 0), unused.sink()).ok());
  service->drain();
  EXPECT_FALSE(service->submit(request_of({1}, 1, 0), unused.sink()).ok());
  ServiceOptions tiny;
  tiny.cache_bytes = 1;
  EXPECT_FALSE(Service::create(demo(), tiny).ok());
  ServiceOptions few;
  few.max_num_seqs = 8;
  few.max_num_batched_tokens = 4;
  EXPECT_FALSE(Service::create(demo(), few).ok());
}

TEST(Service, ThePausedEngineWaitsAndGoesOn) {
  const std::unique_ptr<Service> service = start({}, 40);
  service->pause(true);
  Answer answer;
  ASSERT_TRUE(service->submit(request_of(random_ids(2, 30), 4, 1), answer.sink()).ok());
  const uint64_t beats = service->state().beats;
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_EQ(answer.count(), 0U);
  EXPECT_GT(service->state().beats, beats);  // it lives
  service->pause(false);
  answer.wait();
  EXPECT_EQ(answer.tokens.size(), 4U);
}

TEST(Service, AStalledThreadStopsBeating) {
  ServiceOptions o;
  o.stall_seconds = 2.5;
  const std::unique_ptr<Service> service = start(o, 40);
  Answer answer;
  ASSERT_TRUE(service->submit(request_of(random_ids(2, 30), 4, 1), answer.sink()).ok());
  double oldest = 0;
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    oldest = std::max(oldest, service->state().beat_age_s);
  }
  EXPECT_GT(oldest, 1.5);
  answer.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(service->state().beat_age_s, 1.0);
}

}  // namespace
}  // namespace perigee::engine
