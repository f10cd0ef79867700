// What    The sequences of one step as operations see them: which rows are whose, and where a layer finds what a sequence
//         remembers. One description for all operations that read sequences, on the host and on a GPU alike.
// Owner   tensor. Filled by model/ from its sequences; tests fill their own.
// Threads Plain data.
// Errors  None here: rows, blocks and slots that do not exist are a bug of the caller.
//
// A GPU needs the parts and their tables in its own memory. They lie at the same address in every step, so that a captured
// graph reads the step of the day: only their contents change, by one copy before the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/page_view.h"

namespace perigee::tensor {

// New tokens of one sequence: rows [row_begin, row_begin + rows) of the step, at positions position, position + 1, ...
struct Part {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t position = 0;             // absolute, of row_begin
  const int32_t* blocks = nullptr;  // pool row of each block of tokens, those of the new tokens included
  const int32_t* states = nullptr;  // pool row of each group of states
  int64_t slot = 0;                 // where its open chunks lie
};

struct Parts {
  std::span<const Part> host;            // tables in host memory
  const Part* device = nullptr;          // kCuda: the same, tables in device memory
  const int32_t* part_of_row = nullptr;  // kCuda: [T] the part of each row of the step, -1: no part, the row is left alone
};

// Where one layer's per-token records lie in every attention row of the pool.
struct PagePlace {
  std::byte* base = nullptr;  // start of the pool plus the layer's offset inside a row
  int64_t row_bytes = 0;      // distance between pool rows
  int64_t block_tokens = kPageTokens;
  int64_t token_bytes = 0;

  constexpr PageView of(const Part& part) const { return {base, row_bytes, part.blocks, block_tokens, token_bytes}; }

  // The physical row of a position: tokens counted through the pool, block after block.
  constexpr int32_t place(const Part& part, int64_t position) const {
    return static_cast<int32_t>(part.blocks[position / block_tokens] * block_tokens + position % block_tokens);
  }
  // The record there, for formats whose records stand one after the other.
  constexpr std::byte* record(int32_t place) const {
    return base + place / block_tokens * row_bytes + place % block_tokens * token_bytes;
  }
};

// Where one layer's states lie: in a state row of the pool, or in a sequence's slot.
struct StatePlace {
  std::byte* base = nullptr;  // start of the pool plus the layer's offset inside a row
  int64_t row_bytes = 0;
  int64_t group = 0;  // which of a sequence's state rows

  constexpr std::byte* of(const Part& part) const { return base + part.states[group] * row_bytes; }
};

struct SlotPlace {
  std::byte* base = nullptr;  // start of the slots plus the layer's offset inside one
  int64_t slot_bytes = 0;

  constexpr std::byte* of(const Part& part) const { return base + part.slot * slot_bytes; }
};

}  // namespace perigee::tensor
