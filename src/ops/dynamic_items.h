// What    Runs independent items of unequal size on the pool: whoever is free takes the next one.
// Owner   ops.
// Threads As ThreadPool::parallel_for. Which thread runs an item must not matter for its result.
// Errors  None.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/thread_pool.h"

namespace perigee::ops {

// Calls f(item) for every item in [0, n), in ascending order of start: put the largest first.
template <class F>
void for_each_item(ThreadPool* pool, int64_t n, F&& f) {
  std::atomic<int64_t> next{0};
  const int64_t workers = pool->threads() < n ? pool->threads() : n;
  pool->parallel_for(workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t item = next++; item < n; item = next++) f(item);
    }
  });
}

}  // namespace perigee::ops
