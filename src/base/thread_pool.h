// What    A fixed set of threads that run one loop at a time, cut into equal contiguous parts.
// Owner   base.
// Threads parallel_for is called from one thread at a time; calls from inside a loop body run inline.
// Errors  None.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace perigee {

// Sets flush-to-zero and denormals-are-zero on the calling thread for a scope. Matrix units treat denormals as
// zero, so every floating-point path of the CPU device does (docs/numerics.md).
class FlushDenormals {
 public:
  FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;
  ~FlushDenormals();

 private:
  unsigned saved_;
};

class ThreadPool {
 public:
  // `threads` counts the caller; 1 means no worker at all.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) on disjoint ranges that cover [0, n); denormals are flushed inside. The cut depends on
  // the thread count, so a body must give each index the same result whatever range it stands in.
  void parallel_for(int64_t n, const std::function<void(int64_t, int64_t)>& body);

 private:
  void work(int index);
  void run_part(int index) const;

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int64_t, int64_t)>* body_ = nullptr;
  int64_t n_ = 0;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace perigee
