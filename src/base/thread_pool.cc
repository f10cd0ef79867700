#include "base/thread_pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/check.h"

namespace perigee {
namespace {

constexpr unsigned kFlushBits = 0x8040;  // MXCSR: flush-to-zero and denormals-are-zero
constexpr std::chrono::microseconds kSpinTime{100};  // before a worker sleeps: longer than the gaps of a decode step

thread_local bool inside_loop = false;

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Spins until done() or for kSpinTime; returns the last done().
template <class Done>
bool spin(const Done& done) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() - start < kSpinTime);
  return done();
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

ThreadPool::ThreadPool(int threads) : shares_(static_cast<size_t>(threads)) {
  CHECK_GE(threads, 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    ++loop_;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_parts(int thread, uint64_t loop) {
  const int threads = this->threads();
  for (int i = 0; i < threads; ++i) {
    const int owner = (thread + i) % threads;
    std::atomic<uint64_t>& taken = shares_[static_cast<size_t>(owner)].taken;
    uint64_t value = taken.load(std::memory_order_acquire);
    while (true) {
      // A worker that comes late finds the shares of a later loop, and leaves them alone.
      if (value >> 32 != (loop & 0xffffffff)) return;
      const auto part = static_cast<int64_t>(value & 0xffffffff);
      if (part == kShareParts) break;
      if (!taken.compare_exchange_weak(value, value + 1, std::memory_order_acq_rel)) continue;
      const int64_t parts = int64_t{threads} * kShareParts;
      const int64_t index = int64_t{owner} * kShareParts + part;
      const int64_t begin = n_ * index / parts;
      const int64_t end = n_ * (index + 1) / parts;
      if (begin < end) (*body_)(begin, end);
      pending_.fetch_sub(1, std::memory_order_release);
      value = taken.load(std::memory_order_acquire);
    }
  }
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
  pending_ = threads() * kShareParts;
  const uint64_t loop = loop_.load() + 1;
  for (Share& share : shares_) share.taken.store(loop << 32, std::memory_order_release);
  {
    std::lock_guard lock(mutex_);
    loop_ = loop;
  }
  wake_.notify_all();
  {
    FlushDenormals flush;
    inside_loop = true;
    run_parts(0, loop);
    inside_loop = false;
  }
  const auto done = [&] { return pending_.load(std::memory_order_acquire) == 0; };
  while (!spin(done)) std::this_thread::yield();
}

void ThreadPool::work(int thread) {
  FlushDenormals flush;
  inside_loop = true;
  uint64_t seen = 0;
  while (true) {
    const auto called = [&] { return loop_.load(std::memory_order_acquire) != seen; };
    if (!spin(called)) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, called);
    }
    seen = loop_.load(std::memory_order_acquire);
    if (stop_) return;
    run_parts(thread, seen);
  }
}

}  // namespace perigee
