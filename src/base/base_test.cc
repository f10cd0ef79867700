#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <thread>

#include "base/check.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/result.h"
#include "base/rng.h"
#include "base/thread_pool.h"

namespace perigee {
namespace {

TEST(Check, PrintsValuesAndAborts) {
  const int three = 3;
  EXPECT_DEATH(CHECK_EQ(three, 4), "three == 4 \\(3 against 4\\)");
}

TEST(Result, HoldsValueOrError) {
  Result<int> good(7);
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(*good, 7);
  Result<int> bad(invalid_argument("--threads is {}, at least 1 is needed", 0));
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().message, "--threads is 0, at least 1 is needed");
  EXPECT_DEATH((void)bad.value(), "value\\(\\) of an error");
  EXPECT_TRUE(Status().ok());
}

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (const int64_t n : {0, 1, 2, 5, 1000}) {
      std::vector<int> hits(static_cast<size_t>(n), 0);
      pool.parallel_for(n, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), int64_t{0}), n);
      for (const int h : hits) EXPECT_EQ(h, 1);
    }
  }
}

TEST(ThreadPool, NestedLoopsRunInline) {
  ThreadPool pool(3);
  std::atomic<int> count{0};
  pool.parallel_for(4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      pool.parallel_for(5, [&](int64_t b, int64_t e) { count += static_cast<int>(e - b); });
    }
  });
  EXPECT_EQ(count, 20);
}

TEST(ThreadPool, FlushesDenormalsInsideOnly) {
  ThreadPool pool(2);
  volatile float tiny = 1e-38f;
  std::atomic<int> flushed{0};
  pool.parallel_for(2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) flushed += (tiny * 0.5f == 0.0f) ? 1 : 0;
  });
  EXPECT_EQ(flushed, 2);
  EXPECT_NE(tiny * 0.5f, 0.0f);
}

// Loops right after one another, so that late workers meet the shares of the next loop.
TEST(ThreadPool, LoopsInARowNeverMixTheirParts) {
  ThreadPool pool(4);
  std::vector<int64_t> sums(64);
  for (int64_t loop = 1; loop <= 20'000; ++loop) {
    const int64_t n = loop % 64 + 1;
    pool.parallel_for(n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sums[static_cast<size_t>(i)] += loop;
    });
  }
  std::vector<int64_t> want(64);
  for (int64_t loop = 1; loop <= 20'000; ++loop) {
    for (int64_t i = 0; i <= loop % 64; ++i) want[static_cast<size_t>(i)] += loop;
  }
  EXPECT_EQ(sums, want);
}

TEST(ThreadPool, AFreeThreadTakesThePartsOfABusyOne) {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  pool.parallel_for(8, [&](int64_t begin, int64_t end) {
    // Index 0 waits for all others: its thread's remaining parts must run elsewhere.
    for (int64_t i = begin; i < end; ++i) {
      while (i == 0 && done < 7 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      if (i != 0) ++done;
    }
  });
  EXPECT_EQ(done, 7);
  EXPECT_LT(std::chrono::steady_clock::now(), deadline);
}

TEST(Rng, IsStableAcrossMachines) {
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafull);  // first output of SplitMix64 from seed 0
  EXPECT_EQ(hash_name(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(hash_name("a"), 0xaf63dc4c8601ec8cull);  // published FNV-1a test value
  EXPECT_NE(random_bits(1, 2), random_bits(2, 1));
}

TEST(File, ReadsWritesMapsAndNamesWhatFails) {
  const std::string path = std::filesystem::temp_directory_path() / "perigee_base_test.txt";
  ASSERT_TRUE(write_file(path, "hello").ok());
  EXPECT_EQ(*read_file(path), "hello");
  EXPECT_EQ(MappedFile::open(path)->bytes().size(), 5u);
  EXPECT_FALSE(read_file(path, 3).ok());
  std::filesystem::remove(path);
  const Result<std::string> missing = read_file(path);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find(path), std::string::npos);
  EXPECT_FALSE(MappedFile::open("/").ok());
}

TEST(Cpu, ReportsAtLeastOneThread) {
  EXPECT_GE(cpu_threads(), 1);
  EXPECT_TRUE(!cpu_features().amx || cpu_features().avx512);
}

}  // namespace
}  // namespace perigee
