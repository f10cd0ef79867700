// What    The CPU driver that ops/gemm and ops/moe_gemm share: scratch memory, balanced loops, vector and matrix-tile
//         loops over rows and panels. A weight layout brings its kernels as a struct of static functions:
//           kFactor                       multiplies the expanded activations
//           kNeedsRange                   whether tiles_exact looks at the activations' exponents
//           panel_bytes(blocks)           bytes of one panel
//           segment<isa>(...)             a few rows times one panel over one segment, with vectors
//           tiles_exact(range, ...)       whether matrix tiles give the vectors' bits for these panels
//           tiles(...)                    BF16 tiles of some panels over one segment
// Owner   ops/gemm. Included by *_cpu.cc files only.
// Threads Scratch belongs to the calling thread; multiply runs on the context's pool.
// Errors  None.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "num/bf16.h"
#include "ops/context.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_amx.h"
#include "ops/gemm/gemm_simd.h"

namespace perigee::ops::cpu {

// Purposes of a thread's scratch memory; a buffer keeps its address until a larger one of its purpose is asked for.
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

// Calls body(item, begin unit, end unit) for contiguous runs of about the same total cost, as many as the pool hands out.
void run_balanced(ThreadPool& pool, std::span<const Work> work,
                  const std::function<void(int64_t, int64_t, int64_t)>& body);

constexpr int64_t kSegmentBlocks = kGemmSegment / kGemmBlock;
// FP32 activations of a row block: most of an L2 cache.
constexpr int64_t kExpandedBytes = 384 << 10;
// Floats between the rows of a row block beyond their contents: rows a multiple of 4 KiB apart would share cache sets.
constexpr int64_t kStridePad = 16;
// Panels that share one expansion of a row block.
constexpr int64_t kVectorGroup = 8;
// Panels whose accumulators stay in L2 while all rows pass by (amx_segment).
constexpr int64_t kAmxGroup = 28;
// Blocks of a sub-segment: a pair of panels over them (16 KiB) waits in L1. Few row tiles take whole segments.
constexpr int64_t kAmxSubBlocks = 8;
// Rows of one unit, which bounds the totals of a group; and the same when there are too few panels for all threads.
constexpr int64_t kRowPart = 512;
constexpr int64_t kRowPartMin = 64;
// Rows from which matrix tiles beat vectors.
constexpr int64_t kAmxRowsMin = 8;
// 16 rows of 32 BF16 values.
constexpr int64_t kAmxTileBytes = 1024;
// 16 rows of 16 FP32 results.
constexpr int64_t kAmxTileFloats = 256;

inline int64_t blocks_of(int64_t k) {
  return (k + kGemmBlock - 1) / kGemmBlock;
}

// Exponents of the nonzero normal activations of some rows; infinities and NaN count as 128.
struct ExponentRange {
  int min = 200;
  int max = -200;
};

// Row tiles in the order in which amx_segment reads them: [sub-segment][row tile][block][16 rows][32 columns].
struct AmxRows {
  std::byte* data = nullptr;
  int64_t row_tiles = 0;
  int64_t blocks = 0;
  int64_t sub_blocks = kAmxSubBlocks;  // of all sub-segments but the last

  int64_t bytes() const { return row_tiles * blocks * kAmxTileBytes; }
  // The first block of a sub-segment, counted in blocks from the row's start; row tile t.
  std::byte* at(int64_t block, int64_t t) const {
    const int64_t now = std::min(sub_blocks, blocks - block);
    return data + (block * row_tiles + t * now) * kAmxTileBytes;
  }
};
// Copies up to 16 rows of k columns into row tile t, zero-padded.
void amx_pack_tile(const bf16* const* rows, int64_t row_count, int64_t k, const AmxRows& to, int64_t t);
ExponentRange exponent_range(Isa isa, const bf16* const* rows, int64_t row_count, int64_t k);

// BF16 tiles of some panels over one segment.
struct TilePanels {
  const uint8_t* data = nullptr;
  int64_t panel_bytes = 0;  // between panels
};

// Row tiles times panels over one segment, added to totals[panel][row tile][16][16] (or stored, when first).
struct AmxSegment {
  AmxRows a;
  int64_t first_tile = 0;
  int64_t row_tiles = 0;
  TilePanels w;  // at `block`
  int64_t panels = 0;
  int64_t block = 0;  // where the segment begins
  int64_t blocks = 0;
  float* totals = nullptr;
};
void amx_segment(const AmxSegment& segment);

// Rows of x, possibly picked by index, times one matrix.
struct RowItem {
  Tensor x;
  const int32_t* source = nullptr;  // row of x of product row i; null: i
  int64_t rows = 0;
  Weight w;
  Tensor out;  // [rows, N]

  const bf16* row(int64_t i) const { return x.row<bf16>(source != nullptr ? source[i] : i); }
};

template <class Format>
class Product {
 public:
  Product(const Context& context, const RowItem& item)
      : item_(item),
        isa_(context.isa),
        blocks_(blocks_of(item.w.k)),
        panels_((item.w.n + kGemmPanel - 1) / kGemmPanel) {
    if (panels_ < 4 * context.pool->threads()) row_part_ = kRowPartMin;
  }

  int64_t row_tiles() const { return (item_.rows + 15) / 16; }
  int64_t packed_bytes() const { return row_tiles() * blocks_ * kAmxTileBytes; }
  bool wants_tiles() const { return item_.rows >= kAmxRowsMin && blocks_ > 0; }
  Work packing() const { return {row_tiles(), blocks_}; }
  Work work() const {
    const int64_t parts = (item_.rows + row_part_ - 1) / row_part_;
    // Few rows cost what reading the weights costs.
    return {panels_ * parts, (blocks_ + 1) * (std::min(row_part_, item_.rows) + 3)};
  }

  // Gives the packed activations a place; pack_tile fills it, any tile from any thread.
  void use_tiles(std::byte* tiles) {
    tiles_ = {tiles, row_tiles(), blocks_, row_tiles() > 2 ? kAmxSubBlocks : kSegmentBlocks};
    ranges_.resize(static_cast<size_t>(row_tiles()));
  }
  void pack_tile(int64_t t) {
    const bf16* rows[16];
    const int64_t count = std::min<int64_t>(16, item_.rows - t * 16);
    for (int64_t r = 0; r < count; ++r) rows[r] = item_.row(t * 16 + r);
    amx_pack_tile(rows, count, item_.w.k, tiles_, t);
    if (Format::kNeedsRange)
      ranges_[static_cast<size_t>(t)] = exponent_range(isa_, rows, count, item_.w.k);
  }

  // Units [begin, end): row parts outermost, panels inside.
  void run(int64_t begin, int64_t end) const {
    while (begin < end) {
      const int64_t row = begin / panels_ * row_part_;
      const int64_t panel = begin % panels_;
      const int64_t panel_end = std::min(panels_, panel + end - begin);
      const int64_t rows = std::min(row_part_, item_.rows - row);
      if (tiles_.data != nullptr) {
        run_tiles(row, rows, panel, panel_end);
      } else {
        run_vector(row, rows, panel, panel_end);
      }
      begin += panel_end - panel;
    }
  }

 private:
  const uint8_t* panel(int64_t p) const {
    return static_cast<const uint8_t*>(item_.w.data) + p * Format::panel_bytes(blocks_);
  }

  void run_vector(int64_t row, int64_t rows, int64_t begin, int64_t end) const {
    with_isa(isa_, [&]<Isa isa>() { run_vector<isa>(row, rows, begin, end); });
  }

  // Panels [begin, end) of some rows: totals[panel][panel_stride], rows of 16 inside.
  template <Isa isa>
  void store(int64_t row, int64_t rows, int64_t begin, int64_t end, const float* totals, int64_t panel_stride) const {
    const Tensor& out = item_.out;
    const int64_t size = tensor::dtype_bytes(out.dtype);
    const int64_t column = begin * kGemmPanel;
    GemmResult result;
    result.from = totals;
    result.panel_stride = panel_stride;
    result.rows = rows;
    result.columns = std::min(end * kGemmPanel, item_.w.n) - column;
    result.to_f32 = out.dtype == tensor::DType::kF32;
    result.out = static_cast<std::byte*>(out.data) + (row * out.row_stride + column) * size;
    result.row_bytes = out.row_stride * size;
    gemm_store<isa>(result);
  }

  // Rows [row, row + rows) times panels [begin, end) with vectors. Row blocks are as large as their FP32 copy fits the
  // cache; a single row block is expanded once and the weights stream by.
  template <Isa isa>
  void run_vector(int64_t row, int64_t rows, int64_t begin, int64_t end) const {
    const int64_t padded = blocks_ * kGemmBlock;
    const int64_t stride = padded + kStridePad;
    const int64_t fit = kExpandedBytes / std::max<int64_t>(padded * 4, 1) / 24 * 24;
    const int64_t row_block = std::min(rows, std::max<int64_t>(fit, 12));
    auto* const x = scratch<float>(Scratch::kActivations, row_block * stride);
    auto* const totals = scratch<float>(Scratch::kTotals, row_block * kGemmPanel);
    bool expanded = false;
    for (int64_t group = begin; group < end; group += kVectorGroup) {
      const int64_t group_end = std::min(end, group + kVectorGroup);
      for (int64_t r = 0; r < rows; r += row_block) {
        const int64_t now = std::min(row_block, rows - r);
        for (int64_t i = 0; i < now && !expanded; ++i) {
          gemm_expand<isa>(item_.row(row + r + i), item_.w.k, padded, Format::kFactor,
                           x + i * stride);
        }
        expanded = row_block == rows;
        for (int64_t p = group; p < group_end; ++p) {
          for (int64_t b = 0; b == 0 || b < blocks_; b += kSegmentBlocks) {
            Format::template segment<isa>(x + b * kGemmBlock, stride, now, panel(p), blocks_, b,
                                          std::min(kSegmentBlocks, blocks_ - b), totals);
          }
          store<isa>(row + r, now, p, p + 1, totals, 0);
        }
      }
    }
  }

  // The same with matrix tiles.
  void run_tiles(int64_t row, int64_t rows, int64_t begin, int64_t end) const {
#if defined(__x86_64__)
    AmxSegment s;
    s.a = tiles_;
    s.first_tile = row / 16;
    s.row_tiles = (rows + 15) / 16;
    ExponentRange range;
    for (int64_t t = s.first_tile; t < s.first_tile + s.row_tiles; ++t) {
      range.min = std::min(range.min, ranges_[static_cast<size_t>(t)].min);
      range.max = std::max(range.max, ranges_[static_cast<size_t>(t)].max);
    }
    // Groups of equal size, of whole pairs.
    const int64_t groups = (end - begin + kAmxGroup - 1) / kAmxGroup;
    const int64_t group = ((end - begin + groups - 1) / groups + 1) / 2 * 2;
    for (int64_t p = begin; p < end; p += group) {
      s.panels = std::min(group, end - p);
      if (!Format::tiles_exact(range, panel(p), s.panels, blocks_)) {
        run_vector(row, rows, p, p + s.panels);
        continue;
      }
      const AmxTiles configured;
      s.totals = scratch<float>(Scratch::kTotals, s.panels * s.row_tiles * kAmxTileFloats);
      for (s.block = 0; s.block < blocks_; s.block += kSegmentBlocks) {
        s.blocks = std::min(kSegmentBlocks, blocks_ - s.block);
        s.w = Format::tiles(panel(p), s.panels, blocks_, s.block, s.blocks);
        amx_segment(s);
      }
      store<Isa::kAvx512>(row, rows, p, p + s.panels, s.totals, s.row_tiles * kAmxTileFloats);
    }
#else
    run_vector(row, rows, begin, end);
#endif
  }

  RowItem item_;
  Isa isa_;
  int64_t blocks_;
  int64_t panels_;
  int64_t row_part_ = kRowPart;
  AmxRows tiles_;
  std::vector<ExponentRange> ranges_;  // of each row tile
};

// All products in one parallel loop; items without rows or outputs are left out.
template <class Format>
void multiply(const Context& context, std::span<const RowItem> items) {
  std::vector<Product<Format>> products;
  for (const RowItem& item : items) {
    if (item.rows > 0 && item.w.n > 0) products.emplace_back(context, item);
  }
  if (context.amx) {
    int64_t bytes = 0;
    std::vector<Work> work(products.size());
    for (size_t i = 0; i < products.size(); ++i) {
      if (!products[i].wants_tiles()) continue;
      work[i] = products[i].packing();
      bytes += products[i].packed_bytes();
    }
    std::byte* tiles = scratch<std::byte>(Scratch::kSharedTiles, bytes);
    for (size_t i = 0; i < products.size(); ++i) {
      if (work[i].units == 0) continue;
      products[i].use_tiles(tiles);
      tiles += products[i].packed_bytes();
    }
    run_balanced(*context.pool, work, [&](int64_t i, int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) products[static_cast<size_t>(i)].pack_tile(t);
    });
  }
  std::vector<Work> work;
  for (const Product<Format>& product : products) work.push_back(product.work());
  run_balanced(*context.pool, work, [&](int64_t i, int64_t begin, int64_t end) {
    products[static_cast<size_t>(i)].run(begin, end);
  });
}

// Panels of BF16 pairs (kTiledBf16), which are matrix tiles already.
struct Bf16Panels {
  static constexpr float kFactor = 1.0f;
  static constexpr bool kNeedsRange = false;

  static int64_t panel_bytes(int64_t blocks) { return blocks * kAmxTileBytes; }

  template <Isa isa>
  static void segment(const float* x, int64_t x_stride, int64_t rows, const uint8_t* panel, int64_t,
                      int64_t block, int64_t blocks, float* totals) {
    gemm_segment<isa>(x, x_stride, rows, panel + block * kAmxTileBytes, blocks, block == 0, totals);
  }
  static bool tiles_exact(const ExponentRange&, const uint8_t*, int64_t, int64_t) { return true; }
  static TilePanels tiles(const uint8_t* panel, int64_t, int64_t panel_blocks, int64_t block,
                          int64_t) {
    return {panel + block * kAmxTileBytes, panel_bytes(panel_blocks)};
  }
};

}  // namespace perigee::ops::cpu
