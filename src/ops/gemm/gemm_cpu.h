// What    What the CPU drivers of ops/gemm and ops/moe_gemm share: scratch memory, balanced loops,
// the matrix-tile loops. Owner   ops/gemm. Threads Scratch belongs to the calling thread;
// run_balanced calls its body from the pool's threads. Errors  None.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/thread_pool.h"
#include "num/bf16.h"
#include "ops/context.h"

namespace perigee::ops::cpu {

// Purposes of a thread's scratch memory; a buffer keeps its address until a larger one of its
// purpose is asked for.
enum class Scratch { kActivations, kSharedTiles, kTotals, kPart, kWeights, kScales, kCount };

// At least `bytes` bytes, 64-byte aligned, contents undefined.
void* scratch_bytes(Scratch purpose, int64_t bytes);

template <class T>
T* scratch(Scratch purpose, int64_t count) {
  return static_cast<T*>(scratch_bytes(purpose, count * static_cast<int64_t>(sizeof(T))));
}

// Equal units of work that may be computed apart.
struct Work {
  int64_t units = 0;
  int64_t unit_cost = 1;
};

// Calls body(item, begin unit, end unit); every thread gets one contiguous run of about the same
// total cost.
void run_balanced(ThreadPool& pool, std::span<const Work> work,
                  const std::function<void(int64_t, int64_t, int64_t)>& body);

// Rows from which matrix tiles beat vectors: below, the tile's empty rows cost more than they save.
constexpr int64_t kAmxRowsMin = 8;
constexpr int64_t kAmxTileBytes = 1024;  // 16 rows of 32 BF16 values

// Copies `rows` rows into tiles [row tile][block of 32 columns][16][32], zero-padded.
int64_t amx_packed_bytes(int64_t rows, int64_t k);
void amx_pack_tile(const bf16* const* rows, int64_t row_count, int64_t k, void* tile);

// Row tiles times panels over one segment, added to totals[16 * row_tiles][stride] (or stored, when
// first).
struct AmxSegment {
  const std::byte* a = nullptr;  // first row tile at the segment's first block
  int64_t a_tile_bytes = 0;      // between row tiles
  int64_t row_tiles = 0;
  const uint8_t* w = nullptr;  // first panel at the segment's first block
  int64_t w_panel_bytes = 0;   // between panels
  int64_t panels = 0;
  int64_t blocks = 0;
  bool first = true;
  float* totals = nullptr;
  int64_t stride = 0;
};
void amx_segment(const AmxSegment& segment);

}  // namespace perigee::ops::cpu
