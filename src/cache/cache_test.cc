#include "cache/cache.h"

#include <gtest/gtest.h>

namespace perigee::cache {
namespace {

std::vector<int32_t> ids_of(int32_t seed, int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(seed * 1000 + static_cast<int32_t>(i));
  return ids;
}

// A sequence that is taken in, run to a length and released, the way a scheduler does it.
struct Sequence {
  Sequence(Cache& cache, std::vector<int32_t> tokens, std::string_view salt = "")
      : cache(&cache), ids(std::move(tokens)), chain(namespace_key(salt, ""), cache.options().match_unit) {
    chain.extend(ids, size());
  }
  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  Match match() const { return cache->match(chain, size() - 1); }
  Resumed start(ResumeMode mode = ResumeMode::kKeep) {
    const Match m = match();
    resumed = m.resume;
    return cache->resume(m, mode, holding);
  }
  void run_to(int64_t length) {
    while (static_cast<int64_t>(holding.blocks.size()) < cache->blocks(length)) ASSERT_TRUE(cache->grow(holding));
    cache->index(chain, length, holding);
  }
  void release(int64_t length) { cache->release(chain, length, true, holding); }

  Cache* cache;
  std::vector<int32_t> ids;
  KeyChain chain;
  Holding holding;
  int64_t resumed = 0;
};

void expect_sound(const Cache& cache, std::initializer_list<const Sequence*> sequences = {}) {
  std::vector<const Holding*> holdings;
  for (const Sequence* s : sequences) holdings.push_back(&s->holding);
  const Status s = cache.audit(holdings);
  EXPECT_TRUE(s.ok()) << s.error().message;
}

// Runs all ids of a sequence and leaves them in the cache.
void leave_behind(Cache& cache, const std::vector<int32_t>& ids) {
  Sequence s(cache, ids);
  s.start();
  s.run_to(s.size());
  cache.end_step();
  s.release(s.size());
}

TEST(Cache, OptionsThatCannotWorkGetASentence) {
  EXPECT_TRUE(Cache::check({10, 64, 3, 16}).ok());
  EXPECT_NE(Cache::check({10, 96, 3, 16}).error().message.find("block_tokens"), std::string::npos);
  EXPECT_NE(Cache::check({10, 32, 3, 16}).error().message.find("block_tokens"), std::string::npos);
  EXPECT_NE(Cache::check({10, 64, 3, 8}).error().message.find("--prefix-match-unit"), std::string::npos);
  EXPECT_NE(Cache::check({10, 64, 3, 128}).error().message.find("--prefix-match-unit"), std::string::npos);
  EXPECT_NE(Cache::check({10, 64, 0, 16}).error().message.find("groups"), std::string::npos);
  EXPECT_EQ(Cache::check({3, 64, 3, 16}).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(Cache::check({int64_t{1} << 29, 64, 3, 16}).error().code, ErrorCode::kOutOfRange);
}

TEST(Cache, WhatWasReleasedIsFoundAgain) {
  Cache cache({20, 64, 3, 16});
  leave_behind(cache, ids_of(1, 150));
  expect_sound(cache);
  EXPECT_EQ(cache.stats().held, 0);
  EXPECT_EQ(cache.stats().cached, 3 + 3);

  std::vector<int32_t> longer = ids_of(1, 150);
  longer.resize(400, 7);
  Sequence s(cache, longer);
  const Match m = s.match();
  EXPECT_EQ(m.dense, 144);
  EXPECT_EQ(m.resume, 144);
  EXPECT_EQ(m.rows.size(), 3u);
  EXPECT_EQ(Sequence(cache, ids_of(2, 150)).match().dense, 0);
  EXPECT_EQ(Sequence(cache, longer, "salt").match().dense, 0);
}

TEST(Cache, TheLastTokenIsNeverAHit) {
  Cache cache({20, 64, 1, 16});
  leave_behind(cache, ids_of(1, 128));
  EXPECT_EQ(Sequence(cache, ids_of(1, 128)).match().resume, 0);  // the only state is behind the last token
  EXPECT_EQ(Sequence(cache, ids_of(1, 128)).match().dense, 128);
  EXPECT_EQ(Sequence(cache, ids_of(1, 129)).match().resume, 128);
}

TEST(Cache, AHalfFilledRowOfNobodyIsTakenOverInPlace) {
  Cache cache({20, 64, 1, 16});
  leave_behind(cache, ids_of(1, 100));
  Sequence s(cache, ids_of(1, 200));
  const RowId tail = s.match().rows.back();
  const Resumed r = s.start();
  EXPECT_EQ(r.block_from, kNoRow);
  EXPECT_EQ(s.holding.blocks.back(), tail);
  EXPECT_EQ(r.states_from.size(), 1u);  // the snapshot stays
  expect_sound(cache, {&s});
  cache.end_step();
  EXPECT_EQ(cache.stats().snapshots, 1);
}

TEST(Cache, AHalfFilledRowThatIsHeldIsCopied) {
  Cache cache({20, 64, 1, 16});
  leave_behind(cache, ids_of(1, 100));
  Sequence first(cache, ids_of(1, 200));
  Sequence second(cache, ids_of(1, 200));
  first.start();
  const Resumed r = second.start();
  EXPECT_EQ(r.block_from, first.holding.blocks.back());
  EXPECT_EQ(r.block_to, second.holding.blocks.back());
  EXPECT_NE(r.block_from, r.block_to);
  EXPECT_EQ(r.block_tokens, 96 - 64);
  expect_sound(cache, {&first, &second});
  cache.end_step();
  expect_sound(cache, {&first, &second});
}

TEST(Cache, AHalfFilledRowThatGoesOnIsCopied) {
  Cache cache({20, 64, 1, 16});
  Sequence s(cache, ids_of(1, 120));
  s.start();
  s.run_to(80);
  EXPECT_FALSE(cache.stage_snapshot(s.chain.at(80)).empty());
  cache.end_step();
  s.run_to(120);
  s.release(120);
  std::vector<int32_t> branch = ids_of(1, 90);
  branch.resize(120, 9);
  Sequence other(cache, branch);
  EXPECT_EQ(other.match().resume, 80);
  EXPECT_NE(other.start().block_from, kNoRow);
  cache.end_step();
  // The first one is still there as far as it went.
  EXPECT_EQ(Sequence(cache, ids_of(1, 130)).match().resume, 112);
  expect_sound(cache, {&other});
}

// A list of rows and a state are both needed; cutting one to the other's length loses the state or invents one.
TEST(Cache, WithoutTheTailsRowsTheStateBehindThemIsNoHit) {
  Cache cache({9, 64, 1, 16});
  Sequence s(cache, ids_of(1, 256));
  s.start();
  s.run_to(128);
  ASSERT_FALSE(cache.stage_snapshot(s.chain.at(128)).empty());
  cache.end_step();
  s.run_to(250);
  s.release(250);
  EXPECT_EQ(s.match().resume, 240);
  // Use the states, so that the attention rows of the tail are the oldest.
  for (const int64_t n : {241, 129}) {
    Sequence touch(cache, ids_of(1, n));
    const Match m = touch.match();
    EXPECT_EQ(m.resume, n - 1);
  }
  Sequence user(cache, ids_of(1, 241));
  user.start();
  cache.end_step();
  user.release(240);
  Sequence other(cache, ids_of(2, 300));
  other.start();
  while (cache.match(s.chain, 255).dense == 240)
    other.run_to(static_cast<int64_t>(other.holding.blocks.size()) * 64 + 1);
  const Match m = cache.match(s.chain, 255);
  EXPECT_LT(m.dense, 240);
  EXPECT_LE(m.resume, m.dense);
  EXPECT_EQ(m.rows.size(), static_cast<size_t>(cache.blocks(m.resume)));
  expect_sound(cache, {&other});
}

TEST(Cache, TheFirstOfTwoEqualRowsStaysAndTheSecondIsFree) {
  Cache cache({20, 64, 1, 16});
  Sequence a(cache, ids_of(1, 128));
  Sequence b(cache, ids_of(1, 128));
  a.start();
  b.start();
  a.run_to(128);
  b.run_to(128);
  cache.end_step();
  const std::vector<RowId> rows = a.holding.blocks;
  b.release(128);
  EXPECT_EQ(cache.stats().cached, 1);  // its state: the first has none to find yet
  a.release(128);
  EXPECT_EQ(cache.stats().cached, 3);
  EXPECT_EQ(Sequence(cache, ids_of(1, 129)).match().rows, rows);
  expect_sound(cache);
}

TEST(Cache, TheTailIsEvictedFirstAndWhatWasUsedLast) {
  Cache cache({8, 64, 1, 16});
  leave_behind(cache, ids_of(1, 128));  // two rows and a state
  leave_behind(cache, ids_of(2, 128));
  Sequence touch(cache, ids_of(1, 129));
  touch.start();
  cache.end_step();
  touch.release(128);
  Sequence big(cache, ids_of(3, 200));
  big.start();     // takes one of two free rows
  big.run_to(65);  // and evicts the state of the second
  EXPECT_EQ(Sequence(cache, ids_of(1, 129)).match().resume, 128);
  EXPECT_EQ(Sequence(cache, ids_of(2, 129)).match().resume, 0);
  big.run_to(129);  // and the second's last row
  EXPECT_EQ(Sequence(cache, ids_of(2, 129)).match().dense, 64);
  expect_sound(cache, {&big});
}

TEST(Cache, ASnapshotIsFoundAfterItsStepOnly) {
  Cache cache({20, 64, 2, 16});
  Sequence s(cache, ids_of(1, 100));
  s.start();
  s.run_to(64);
  EXPECT_EQ(cache.stage_snapshot(s.chain.at(64)).size(), 2u);
  EXPECT_FALSE(cache.has_snapshot(s.chain.at(64)));
  EXPECT_EQ(Sequence(cache, ids_of(1, 100)).match().resume, 0);
  expect_sound(cache, {&s});
  cache.end_step();
  EXPECT_EQ(Sequence(cache, ids_of(1, 100)).match().resume, 64);
  expect_sound(cache, {&s});
}

TEST(Cache, WhatAStepCopiesFromIsNotEvictedInIt) {
  Cache cache({6, 64, 1, 16});
  leave_behind(cache, ids_of(1, 100));  // two rows and a state
  Sequence s(cache, ids_of(1, 200));
  const Resumed r = s.start();
  const RowId source = r.states_from[0];
  Sequence other(cache, ids_of(2, 300));
  other.start();
  while (cache.grow(other.holding)) {
    for (const RowId row : other.holding.blocks) EXPECT_NE(row, source);
  }
  EXPECT_EQ(cache.stats().snapshots, 1);
  cache.end_step();
  EXPECT_TRUE(cache.grow(other.holding));  // now it may go
  EXPECT_EQ(cache.stats().snapshots, 0);
  expect_sound(cache, {&s, &other});
}

TEST(Cache, AHalfFilledRowThatIsCopiedIsNotEvictedInTheStep) {
  Cache cache({7, 64, 1, 16});
  Sequence s(cache, ids_of(1, 120));
  s.start();
  s.run_to(80);
  ASSERT_FALSE(cache.stage_snapshot(s.chain.at(80)).empty());
  cache.end_step();
  s.run_to(120);
  cache.release(s.chain, 120, false, s.holding);  // two rows, and the state at 80
  Sequence branch(cache, ids_of(1, 90));
  const Resumed r = branch.start();
  ASSERT_NE(r.block_from, kNoRow);
  Sequence other(cache, ids_of(2, 300));
  other.start();
  while (cache.grow(other.holding)) EXPECT_NE(other.holding.blocks.back(), r.block_from);
  expect_sound(cache, {&branch, &other});
  cache.end_step();
  expect_sound(cache, {&branch, &other});
}

TEST(Cache, ConsumingTakesNoMoreRowsThanTheSequence) {
  Cache cache({3, 64, 1, 16});
  leave_behind(cache, ids_of(1, 100));
  Sequence s(cache, ids_of(1, 128));
  const ResumeCost keep = cache.resume_cost(s.match(), ResumeMode::kKeep);
  EXPECT_GT(keep.pinned + keep.fresh, cache.available());
  const ResumeCost consume = cache.resume_cost(s.match(), ResumeMode::kConsume);
  EXPECT_EQ(consume.pinned + consume.fresh, 3);
  const Resumed r = s.start(ResumeMode::kConsume);
  EXPECT_TRUE(r.states_from.empty());
  EXPECT_EQ(s.resumed, 96);
  expect_sound(cache, {&s});
  cache.end_step();
  s.run_to(128);
  s.release(128);
  expect_sound(cache);
}

TEST(Cache, AnUnknownStateIsNotKept) {
  Cache cache({20, 64, 1, 16});
  Sequence s(cache, ids_of(1, 100));
  s.start();
  s.run_to(100);
  cache.end_step();
  cache.release(s.chain, 100, false, s.holding);
  EXPECT_EQ(cache.stats().snapshots, 0);
  EXPECT_EQ(Sequence(cache, ids_of(1, 100)).match().dense, 96);
  EXPECT_EQ(Sequence(cache, ids_of(1, 100)).match().resume, 0);
  expect_sound(cache);
}

TEST(Cache, TheAuditSeesAForgottenSequence) {
  Cache cache({20, 64, 1, 16});
  Sequence s(cache, ids_of(1, 100));
  s.start();
  s.run_to(100);
  EXPECT_FALSE(cache.audit({}).ok());
  const Holding* twice[] = {&s.holding, &s.holding};
  EXPECT_FALSE(cache.audit(twice).ok());
  expect_sound(cache, {&s});
}

}  // namespace
}  // namespace perigee::cache
