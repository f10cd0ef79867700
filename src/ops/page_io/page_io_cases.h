// What    A pool of cache rows for tests and benchmarks: block tables of any order, canary bytes
//         everywhere.
// Owner   ops/page_io tests; used by the tests of ops/mla and ops/index_score too.
// Threads One.
// Errors  None.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "tensor/parts.h"

namespace perigee::ops::testing {

constexpr uint8_t kCanary = 0xa7;

// Latents of 512 + 64 columns and keys of 128, as published: a decode step and a prompt.
struct PageBenchCase {
  int64_t sequences;
  int64_t rows;
};
constexpr PageBenchCase kPageBenchCases[] = {{64, 1}, {1, 2048}};

// One sequence of `tokens` tokens whose blocks lie in rows of a seeded random order; a row has
// unused bytes in front of and behind the layer's own. With an even seed records of whole pieces of 16 bytes lie at multiples of
// 16, as in the pool of an engine; with an odd one they do not.
class PagedSequence {
 public:
  PagedSequence(int64_t tokens, int64_t token_bytes, int64_t block_tokens, uint64_t order_seed)
      : front_(order_seed % 2 == 0 ? 48 : 40),
        back_(order_seed % 2 == 0 ? 32 : 24),
        token_bytes_(token_bytes),
        block_tokens_(block_tokens) {
    const int64_t blocks = (tokens + block_tokens - 1) / block_tokens;
    const int64_t pool_rows = blocks + 3;
    for (int64_t i = 0; i < pool_rows; ++i) rows_.push_back(static_cast<int32_t>(i));
    for (int64_t i = pool_rows - 1; order_seed != 0 && i > 0; --i) {
      const uint64_t j =
          random_bits(order_seed, static_cast<uint64_t>(i)) % static_cast<uint64_t>(i + 1);
      std::swap(rows_[static_cast<size_t>(i)], rows_[j]);
    }
    pool_.assign(static_cast<size_t>(pool_rows * row_bytes()), kCanary);
  }

  int64_t row_bytes() const { return front_ + block_tokens_ * token_bytes_ + back_; }
  tensor::PageView view() {
    return {reinterpret_cast<std::byte*>(pool_.data()) + front_, row_bytes(), rows_.data(),
            block_tokens_, token_bytes_};
  }
  // The same in two pieces: the layer's place and the block table. On a GPU the place lies in a copy of pool().
  tensor::PagePlace place(const void* pool) {
    return {static_cast<std::byte*>(const_cast<void*>(pool)) + front_, row_bytes(), block_tokens_, token_bytes_};
  }
  tensor::PagePlace place() { return place(pool_.data()); }
  const std::vector<int32_t>& blocks() const { return rows_; }
  std::vector<uint8_t>& pool() { return pool_; }

 private:
  int64_t front_, back_;
  int64_t token_bytes_;
  int64_t block_tokens_;
  std::vector<int32_t> rows_;
  std::vector<uint8_t> pool_;
};

}  // namespace perigee::ops::testing
