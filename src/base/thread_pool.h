// What    A fixed set of threads that run one loop at a time, cut into contiguous parts. A thread that finishes early takes parts
//         that others have not begun, so a thread without a core to run on holds up nobody.
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
  static constexpr int kShareParts = 4;  // parts of a thread: a slow core gives up to three quarters of its share away

  // `threads` counts the caller; 1 means no worker at all.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) on disjoint ranges that cover [0, n); denormals are flushed inside. The cut depends on the thread
  // count, and who runs which range on chance, so a body must give each index the same result whatever range it stands in.
  void parallel_for(int64_t n, const std::function<void(int64_t, int64_t)>& body);

 private:
  // The parts that a thread begins with: the loop's number in the upper half, parts taken in the lower one.
  struct alignas(64) Share {
    std::atomic<uint64_t> taken{0};
  };

  void work(int thread);
  // Runs parts of loop number `loop`, `thread`'s own first, then what others have not begun.
  void run_parts(int thread, uint64_t loop);

  std::vector<std::thread> workers_;
  std::vector<Share> shares_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int64_t, int64_t)>* body_ = nullptr;
  int64_t n_ = 0;
  std::atomic<uint64_t> loop_{0};
  std::atomic<int> pending_{0};  // parts not finished
  std::atomic<bool> stop_{false};
};

}  // namespace perigee
