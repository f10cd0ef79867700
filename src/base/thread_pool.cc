#include "base/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/check.h"

namespace perigee {
namespace {

constexpr unsigned kFlushBits = 0x8040;  // MXCSR: flush-to-zero and denormals-are-zero
constexpr int kSpins = 20000;            // about 50 us before a worker sleeps: shorter than a decode step's gaps

thread_local bool inside_loop = false;

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

FlushDenormals::FlushDenormals() : saved_(0) {
#if defined(__x86_64__)
  saved_ = _mm_getcsr();
  _mm_setcsr(saved_ | kFlushBits);
#endif
}

FlushDenormals::~FlushDenormals() {
#if defined(__x86_64__)
  _mm_setcsr(saved_);
#endif
}

ThreadPool::ThreadPool(int threads) {
  CHECK_GE(threads, 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    ++generation_;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_part(int index) const {
  const int64_t parts = static_cast<int64_t>(workers_.size()) + 1;
  const int64_t begin = n_ * index / parts;
  const int64_t end = n_ * (index + 1) / parts;
  if (begin < end) (*body_)(begin, end);
}

void ThreadPool::parallel_for(int64_t n, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  if (inside_loop || workers_.empty() || n == 1) {
    FlushDenormals flush;
    body(0, n);
    return;
  }
  body_ = &body;
  n_ = n;
  pending_ = static_cast<int>(workers_.size());
  {
    std::lock_guard lock(mutex_);
    ++generation_;
  }
  wake_.notify_all();
  {
    FlushDenormals flush;
    inside_loop = true;
    run_part(0);
    inside_loop = false;
  }
  int spins = 0;
  while (pending_.load(std::memory_order_acquire) != 0) {
    if (++spins < kSpins) {
      pause_briefly();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(int index) {
  FlushDenormals flush;
  inside_loop = true;
  uint64_t seen = 0;
  while (true) {
    for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) {
      pause_briefly();
    }
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
    }
    ++seen;
    if (stop_) return;
    run_part(index);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace perigee
