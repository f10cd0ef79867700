#include "ops/gemm/gemm_cpu.h"

#include <algorithm>
#include <vector>

#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_amx.h"
#include "ops/gemm/gemm_simd.h"

namespace perigee::ops::cpu {
namespace {

constexpr int64_t kSegmentBlocks = kGemmSegment / kGemmBlock;
constexpr int64_t kExpandedBytes = 384
                                   << 10;  // FP32 activations of a row block: most of an L2 cache
constexpr int64_t kVectorGroup = 8;        // panels that share one expansion of a row block
constexpr int64_t kAmxGroup = 16;  // panels of a segment (896 KiB) that wait in L2 for all rows
constexpr int64_t kRowPart = 512;  // rows of one unit; bounds the totals of a group

struct Plan {
  GemmItem item;
  int64_t blocks = 0;
  int64_t panels = 0;
  int64_t row_part = kRowPart;
  const std::byte* tiles = nullptr;  // packed activations, matrix tiles only

  int64_t row_parts() const { return (item.x.rows() + row_part - 1) / row_part; }
};

void* out_address(const Tensor& out, int64_t row, int64_t column) {
  return static_cast<std::byte*>(out.data) +
         (row * out.row_stride + column) * tensor::dtype_bytes(out.dtype);
}

template <Isa isa>
void store_panels(const Plan& plan, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                  const float* totals, int64_t stride) {
  const int64_t column = panel * kGemmPanel;
  const int64_t count = std::min(panels * kGemmPanel, plan.item.w.n - column);
  for (int64_t r = 0; r < rows; ++r) {
    gemm_store<isa>(totals + r * stride, count, plan.item.out.dtype == tensor::DType::kF32,
                    out_address(plan.item.out, row + r, column));
  }
}

// Rows [row, row + rows) times panels [begin, end) with vectors.
template <Isa isa>
void run_vector(const Plan& plan, int64_t row, int64_t rows, int64_t begin, int64_t end) {
  const int64_t padded = plan.blocks * kGemmBlock;
  const int64_t fit = kExpandedBytes / std::max<int64_t>(padded * 4, 1) / 24 * 24;
  const int64_t row_block = std::min(rows, std::max<int64_t>(fit, 12));
  auto* const x = scratch<float>(Scratch::kActivations, row_block * padded);
  auto* const totals = scratch<float>(Scratch::kTotals, row_block * kGemmPanel);
  const auto* const w = static_cast<const uint8_t*>(plan.item.w.data);
  bool expanded = false;
  for (int64_t group = begin; group < end; group += kVectorGroup) {
    const int64_t group_end = std::min(end, group + kVectorGroup);
    for (int64_t r = 0; r < rows; r += row_block) {
      const int64_t now = std::min(row_block, rows - r);
      for (int64_t i = 0; i < now && !expanded; ++i) {
        gemm_expand<isa>(plan.item.x.row<bf16>(row + r + i), plan.item.w.k, padded, 1.0f,
                         x + i * padded);
      }
      expanded = row_block == rows;
      for (int64_t p = group; p < group_end; ++p) {
        const uint8_t* const panel = w + p * plan.blocks * kAmxTileBytes;
        for (int64_t b = 0; b == 0 || b < plan.blocks; b += kSegmentBlocks) {
          gemm_segment<isa>(x + b * kGemmBlock, padded, now, panel + b * kAmxTileBytes,
                            std::min(kSegmentBlocks, plan.blocks - b), b == 0, totals);
        }
        store_panels<isa>(plan, row + r, now, p, 1, totals, kGemmPanel);
      }
    }
  }
}

// Rows [row, row + rows) times panels [begin, end) with matrix tiles.
void run_tiles(const Plan& plan, int64_t row, int64_t rows, int64_t begin, int64_t end) {
#if defined(__x86_64__)
  const AmxTiles configured;
  const int64_t row_tiles = (rows + 15) / 16;
  const int64_t tile_bytes = plan.blocks * kAmxTileBytes;
  AmxSegment s;
  s.stride = kAmxGroup * kGemmPanel;
  s.totals = scratch<float>(Scratch::kTotals, row_tiles * 16 * s.stride);
  s.a_tile_bytes = tile_bytes;
  s.row_tiles = row_tiles;
  s.w_panel_bytes = tile_bytes;
  for (int64_t p = begin; p < end; p += kAmxGroup) {
    s.panels = std::min(kAmxGroup, end - p);
    for (int64_t b = 0; b == 0 || b < plan.blocks; b += kSegmentBlocks) {
      s.blocks = std::min(kSegmentBlocks, plan.blocks - b);
      s.a = plan.tiles + row / 16 * tile_bytes + b * kAmxTileBytes;
      s.w = static_cast<const uint8_t*>(plan.item.w.data) + p * tile_bytes + b * kAmxTileBytes;
      s.first = b == 0;
      amx_segment(s);
    }
    store_panels<Isa::kAvx512>(plan, row, rows, p, s.panels, s.totals, s.stride);
  }
#else
  (void)plan, (void)row, (void)rows, (void)begin, (void)end;
#endif
}

// Units [begin, end) of a plan, row parts outermost.
void run_units(const Context& context, const Plan& plan, int64_t begin, int64_t end) {
  while (begin < end) {
    const int64_t part = begin / plan.panels;
    const int64_t panel = begin % plan.panels;
    const int64_t panel_end = std::min(plan.panels, panel + end - begin);
    const int64_t row = part * plan.row_part;
    const int64_t rows = std::min(plan.row_part, plan.item.x.rows() - row);
    if (plan.tiles != nullptr) {
      run_tiles(plan, row, rows, panel, panel_end);
    } else {
      with_isa(context.isa, [&]<Isa isa>() { run_vector<isa>(plan, row, rows, panel, panel_end); });
    }
    begin += panel_end - panel;
  }
}

Plan make_plan(const Context& context, const GemmItem& item) {
  Plan plan;
  plan.item = item;
  plan.blocks = (item.w.k + kGemmBlock - 1) / kGemmBlock;
  plan.panels = (item.w.n + kGemmPanel - 1) / kGemmPanel;
  // Too few panels for all threads: rows are divided as well.
  if (plan.panels < 4 * context.pool->threads()) plan.row_part = 64;
  return plan;
}

// Packs the activations of all items that are worth matrix tiles.
void pack_activations(const Context& context, std::span<Plan> plans) {
  std::vector<Work> work(plans.size());
  int64_t bytes = 0;
  std::vector<int64_t> offsets(plans.size(), -1);
  for (size_t i = 0; i < plans.size(); ++i) {
    const Tensor& x = plans[i].item.x;
    if (!context.amx || x.rows() < kAmxRowsMin || plans[i].blocks == 0) continue;
    offsets[i] = bytes;
    bytes += amx_packed_bytes(x.rows(), x.dims[1]);
    work[i] = {(x.rows() + 15) / 16, plans[i].blocks};
  }
  if (bytes == 0) return;
  auto* const tiles = scratch<std::byte>(Scratch::kSharedTiles, bytes);
  for (size_t i = 0; i < plans.size(); ++i) {
    if (offsets[i] >= 0) plans[i].tiles = tiles + offsets[i];
  }
  run_balanced(*context.pool, work, [&](int64_t i, int64_t begin, int64_t end) {
    const Tensor& x = plans[i].item.x;
    for (int64_t t = begin; t < end; ++t) {
      const bf16* rows[16];
      const int64_t count = std::min<int64_t>(16, x.rows() - t * 16);
      for (int64_t r = 0; r < count; ++r) rows[r] = x.row<bf16>(t * 16 + r);
      amx_pack_tile(rows, count, x.dims[1],
                    tiles + offsets[i] + t * plans[i].blocks * kAmxTileBytes);
    }
  });
}

}  // namespace

void gemm_batched(const Context& context, std::span<const GemmItem> items) {
  std::vector<Plan> plans;
  for (const GemmItem& item : items) {
    if (item.x.rows() > 0 && item.w.n > 0) plans.push_back(make_plan(context, item));
  }
  pack_activations(context, plans);
  std::vector<Work> work;
  for (const Plan& plan : plans) {
    const int64_t rows = std::min(plan.row_part, plan.item.x.rows());
    work.push_back({plan.panels * plan.row_parts(), (plan.blocks + 1) * (rows + 3)});
  }
  run_balanced(*context.pool, work, [&](int64_t i, int64_t begin, int64_t end) {
    run_units(context, plans[i], begin, end);
  });
}

}  // namespace perigee::ops::cpu
