// What    Where one layer's per-token cache records of one sequence lie: rows of a pool found through a block table.
// Owner   tensor. Filled by whoever owns the pool; read and written by ops/page_io, ops/mla and ops/index_score.
// Threads Value type; the records of a token may be read while other tokens are written.
// Errors  None here: positions beyond the table are a bug of the caller.
//
// A block of `block_tokens` tokens (a power of two, a multiple of kPageTokens) lies in one pool row. Inside a row, the layer's
// records stand in kernel pages of kPageTokens tokens; every page is kPageTokens * token_bytes long. How the bytes of a page are
// divided among its tokens is the record format's matter (num/records.h): most formats put one whole record after the other, key
// formats with scales put all values first and then all scales.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perigee::tensor {

constexpr int64_t kPageTokens = 64;

struct PageView {
  std::byte* base = nullptr;      // start of the pool plus the layer's offset inside a row
  int64_t row_bytes = 0;          // distance between pool rows
  const int32_t* rows = nullptr;  // block table: pool row of block b
  int64_t block_tokens = kPageTokens;
  int64_t token_bytes = 0;

  // The page that holds token t; the token's index inside it is t % kPageTokens. 64-bit throughout: pools exceed 4 GiB.
  constexpr std::byte* page(int64_t t) const {
    const int64_t in_block = t % block_tokens;
    return base + static_cast<int64_t>(rows[t / block_tokens]) * row_bytes +
           in_block / kPageTokens * kPageTokens * token_bytes;
  }
};

}  // namespace perigee::tensor
