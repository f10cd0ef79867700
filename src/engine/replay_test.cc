#include "engine/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "base/file.h"
#include "base/rng.h"
#include "engine/service.h"

namespace perigee::engine {
namespace {

constexpr auto kDemo = PERIGEE_SOURCE_DIR "/models/demo";

Engine& demo() {
  static const std::unique_ptr<Engine> engine = [] {
    EngineOptions o;
    o.model = kDemo;
    o.threads = 2;
    return std::move(Engine::open(o)).value();
  }();
  return *engine;
}

// Lets every id pass but one, as a grammar would.
class AllBut : public text::Constraint {
 public:
  explicit AllBut(int32_t id) : id_(id) {}
  bool fill_mask(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), ~uint32_t{0});
    mask[static_cast<size_t>(id_ / 32)] &= ~(uint32_t{1} << (id_ % 32));
    return true;
  }
  void accept(int32_t) override {}
  void rollback(int64_t) override {}
  std::unique_ptr<Constraint> clone() const override { return std::make_unique<AllBut>(id_); }

 private:
  int32_t id_;
};

TokenRequest request_of(uint64_t seed, int64_t length) {
  TokenRequest r;
  for (int64_t i = 0; i < length; ++i) {
    r.prompt.push_back(static_cast<int32_t>(random_bits(seed, static_cast<uint64_t>(i)) % 1900));
  }
  r.max_tokens = 12;
  r.sampling.seed = seed;
  return r;
}

// Serves all requests at once and reads what the service left, by key.
// whole_after: the caller has a whole answer after so many tokens, and asks for no more once twice as many have come.
std::vector<RequestRecord> serve(const std::vector<TokenRequest>& requests, int64_t cancel_after = -1,
                                 int64_t whole_after = 0) {
  std::string folder = (std::filesystem::temp_directory_path() / "perigee-replay-XXXXXX").string();
  CHECK(mkdtemp(folder.data()) != nullptr);
  {
    ServiceOptions o;
    o.record_dir = folder;
    o.max_model_len = 2048;
    o.on_record_failure = [](const std::string& why) { ADD_FAILURE() << why; };
    const std::unique_ptr<Service> service = std::move(Service::create(demo(), o)).value();
    std::mutex mutex;
    std::condition_variable changed;
    size_t ends = 0;
    int64_t tokens = 0;
    for (const TokenRequest& r : requests) {
      const Result<RequestKey> key = service->submit(r, [&](TokenUpdate&& u) {
        std::lock_guard lock(mutex);
        ends += u.finish ? 1 : 0;
        tokens += static_cast<int64_t>(u.tokens.size());
        changed.notify_all();
      });
      CHECK(key.ok());
      if (cancel_after == 0) service->cancel(*key);
      if (whole_after == 0) continue;
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return tokens >= 2 * whole_after; });
      service->complete(*key, whole_after);
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ends == requests.size(); });
  }
  std::vector<RequestRecord> records;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.path();
    records.push_back(std::move(from_json(std::move(read_file(path)).value(), path)).value());
  }
  std::filesystem::remove_all(folder);
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  return records;
}

ReplayReport replay_now(const RequestRecord& r) { return std::move(replay(demo(), r)).value(); }

TEST(Replay, ServedRequestsOfEveryKindGiveTheirBitsAgain) {
  std::vector<TokenRequest> requests;
  for (uint64_t i = 0; i < 7; ++i) requests.push_back(request_of(i, 1 + 90 * static_cast<int64_t>(i)));
  requests[0].sampling.temperature = 0;
  requests[1].sampling.top_p = 0.7;
  requests[1].sampling.choice = 3;
  requests[2].sampling.repetition_penalty = 1.3;
  requests[2].sampling.presence_penalty = 0.7;
  requests[3].sampling.logit_bias = {{77, 30.5f}};
  requests[3].sampling.frequency_penalty = 9;
  requests[4].sampling.allowed_ids = {11, 12, 13};
  requests[4].sampling.min_tokens = 4;
  requests[4].stop_ids = {12};
  requests[5].sampling.bad_words = {{77}, {1, 2}};
  requests[5].processed_logprobs = true;
  const std::vector<RequestRecord> records = serve(requests);
  ASSERT_EQ(records.size(), requests.size());
  for (size_t i = 0; i < records.size(); ++i) {
    const RequestRecord& r = records[i];
    EXPECT_EQ(r.prompt, requests[i].prompt);
    EXPECT_TRUE(check_same(r.identity, std::move(identify(demo())).value(), "the record").ok());
    const ReplayReport report = replay_now(r);
    EXPECT_TRUE(report.equal()) << i;
    EXPECT_TRUE(report.generation.skipped.empty()) << i;
    EXPECT_EQ(report.tokens, static_cast<int64_t>(r.ids.size()));
  }
  EXPECT_EQ(records[4].finish, RequestEnd::kStop);
  EXPECT_EQ(records[6].finish, RequestEnd::kLength);
}

TEST(Replay, OneChangedBitOrIdIsFound) {
  const RequestRecord good = serve({request_of(5, 100)}).at(0);
  for (const size_t at : {size_t{0}, size_t{7}, good.ids.size() - 1}) {
    RequestRecord r = good;
    r.logprobs[at] = std::bit_cast<double>(std::bit_cast<uint64_t>(r.logprobs[at]) ^ 1);
    ReplayReport report = replay_now(r);
    ASSERT_TRUE(report.generation.difference && report.scoring.difference);
    EXPECT_EQ(report.generation.difference->position, 100 + static_cast<int64_t>(at));
    EXPECT_EQ(report.scoring.difference->position, 100 + static_cast<int64_t>(at));
    EXPECT_EQ(report.scoring.difference->logprob, good.logprobs[at]);
    EXPECT_EQ(report.scoring.difference->recorded_logprob, r.logprobs[at]);
    r = good;
    r.ids[at] ^= 1;
    report = replay_now(r);
    ASSERT_TRUE(report.generation.difference && report.scoring.difference);
    EXPECT_EQ(report.generation.difference->position, 100 + static_cast<int64_t>(at));
    EXPECT_EQ(report.generation.difference->id, good.ids[at]);
    EXPECT_EQ(report.generation.difference->recorded_id, r.ids[at]);
    EXPECT_EQ(report.scoring.difference->position, 100 + static_cast<int64_t>(at));
  }
  RequestRecord other_seed = good;
  other_seed.sampling.seed += 1;
  other_seed.sampling.temperature = 5;
  const ReplayReport report = replay_now(other_seed);
  EXPECT_TRUE(report.generation.difference.has_value());
  EXPECT_FALSE(report.scoring.difference.has_value());
}

TEST(Replay, AStopTokenThatIsNoLongerReachedIsFound) {
  RequestRecord r = serve({request_of(5, 100)}).at(0);
  r.stop_ids = {r.ids[3]};
  const auto first = std::find(r.ids.begin(), r.ids.end(), r.ids[3]) - r.ids.begin();
  const ReplayReport report = replay_now(r);
  ASSERT_TRUE(report.generation.difference.has_value());
  EXPECT_EQ(report.generation.difference->position, 100 + first + 1);
  EXPECT_FALSE(report.generation.difference->id.has_value());
}

TEST(Replay, WhatAGrammarChoseIsScoredOnly) {
  TokenRequest r = request_of(3, 40);
  r.constraint = std::make_shared<AllBut>(5);
  const RequestRecord record = serve({r}).at(0);
  EXPECT_TRUE(record.constrained);
  const ReplayReport report = replay_now(record);
  EXPECT_FALSE(report.generation.skipped.empty());
  EXPECT_TRUE(report.scoring.skipped.empty());
  EXPECT_TRUE(report.equal());
}

TEST(Replay, BrokenOffRequestsLeaveNoRecord) {
  TokenRequest r = request_of(3, 40);
  r.max_tokens = 1900;
  EXPECT_TRUE(serve({r}, 0).empty());
}

TEST(Replay, AnAnswerThatItsCallerEndedIsRecordedAsFarAsItGoes) {
  TokenRequest r = request_of(4, 40);
  r.max_tokens = 1900;
  r.sampling.min_tokens = 50;
  const std::vector<RequestRecord> records = serve({r}, -1, 5);
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].ids.size(), 5U);
  EXPECT_EQ(records[0].logprobs.size(), 5U);
  EXPECT_EQ(records[0].max_tokens, 5);
  EXPECT_EQ(records[0].finish, RequestEnd::kLength);
  const ReplayReport report = replay_now(records[0]);
  EXPECT_TRUE(report.equal());
  EXPECT_TRUE(report.generation.skipped.empty());
}

TEST(Replay, WhatDoesNotFitTheModelIsRefused) {
  RequestRecord r;
  r.prompt = {1 << 20};
  r.ids = {1};
  r.logprobs = {0};
  r.max_tokens = 1;
  const Result<ReplayReport> report = replay(demo(), r);
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.error().message.find("prompt_ids with ids: id 1048576"), std::string::npos) << report.error().message;
}

}  // namespace
}  // namespace perigee::engine
