#include "ops/gemm/gemm_driver.h"
#include "ops/moe_gemm/moe_gemm.h"
#include "ops/moe_gemm/moe_gemm_simd.h"

namespace perigee::ops::cpu {
namespace {

constexpr int64_t kBlockCodes = 256;  // 16 rows x 32 columns x 4 bits
// Rows up to which decoding in registers, four rows at a time, beats decoding once into a BF16 panel.
constexpr int64_t kStreamRows = 8;

// Panels of MXFP4 codes (kTiledMxfp4).
struct Mxfp4Panels {
  static constexpr float kFactor = kMoeFactor;
  static constexpr bool kNeedsRange = true;

  static int64_t panel_bytes(int64_t blocks) { return blocks * (kBlockCodes + kGemmPanel); }
  static const uint8_t* scales(const uint8_t* panel, int64_t panel_blocks) {
    return panel + panel_blocks * kBlockCodes;
  }

  template <Isa isa>
  static void segment(const float* x, int64_t x_stride, int64_t rows, const uint8_t* panel,
                      int64_t panel_blocks, int64_t block, int64_t blocks, float* totals) {
    const uint8_t* const codes = panel + block * kBlockCodes;
    const uint8_t* const bytes = scales(panel, panel_blocks) + block * kGemmPanel;
    if (rows <= kStreamRows) {
      for (int64_t r = 0; r < rows; r += 4) {
        moe_stream<isa>(x + r * x_stride, x_stride, std::min<int64_t>(4, rows - r), codes, bytes,
                        blocks, block == 0, totals + r * kGemmPanel);
      }
      return;
    }
    auto* const pairs = scratch<uint8_t>(Scratch::kWeights, blocks * kAmxTileBytes);
    auto* const factors = scratch<float>(Scratch::kScales, blocks * kGemmPanel);
    moe_unpack<isa>(codes, bytes, blocks, false, pairs, factors);
    moe_scaled<isa>(x, x_stride, rows, pairs, blocks, factors, block == 0, totals);
  }

  // Dequantised values and the chains over them stay normal FP32 numbers, and so do the chains over plain codes: then
  // scaling before or after the sum is the same. A value of a chain is a multiple of 2^(min - 8) and below 2^(max + 9).
  static bool tiles_exact(const ExponentRange& x, const uint8_t* panel, int64_t panels,
                          int64_t panel_blocks) {
    int low = 255;
    int high = 0;
    for (int64_t p = 0; p < panels; ++p) {
      const uint8_t* const bytes = scales(panel + p * panel_bytes(panel_blocks), panel_blocks);
      for (int64_t i = 0; i < panel_blocks * kGemmPanel; ++i) {
        low = std::min<int>(low, bytes[i]);
        high = std::max<int>(high, bytes[i]);
      }
    }
    low -= 127;
    high -= 127;
    if (x.max < x.min) return high <= 125;  // nothing but zeros
    return x.min >= -101 && x.max <= 118 && low >= -100 && high <= 125 && x.min - 8 + low >= -126 &&
           x.max + 9 + high <= 127;
  }

  static TilePanels tiles(const uint8_t* panel, int64_t panels, int64_t panel_blocks, int64_t block,
                          int64_t blocks) {
    const int64_t bytes = blocks * kAmxTileBytes;
    auto* const pairs = scratch<uint8_t>(Scratch::kWeights, panels * bytes);
    for (int64_t p = 0; p < panels; ++p) {
      const uint8_t* const from = panel + p * panel_bytes(panel_blocks);
      moe_unpack<Isa::kAvx512>(from + block * kBlockCodes,
                               scales(from, panel_blocks) + block * kGemmPanel, blocks, true,
                               pairs + p * bytes, nullptr);
    }
    return {pairs, bytes};
  }
};

}  // namespace

void moe_gemm(const Context& context, const Tensor& x, const Tensor* source, const Tensor& offsets,
              std::span<const Weight> experts, const Tensor& out) {
  const int32_t* const at = offsets.as<int32_t>();
  std::vector<RowItem> items;
  for (size_t e = 0; e < experts.size(); ++e) {
    const int64_t rows = at[e + 1] - at[e];
    if (rows == 0) continue;
    RowItem item;
    item.x = source != nullptr ? x : x.slice(at[e], rows);
    item.source = source != nullptr ? source->as<int32_t>() + at[e] : nullptr;
    item.rows = rows;
    item.w = experts[e];
    item.out = out.slice(at[e], rows);
    items.push_back(item);
  }
  if (experts[0].layout == tensor::WeightLayout::kTiledBf16) {
    multiply<Bf16Panels>(context, items);
  } else {
    multiply<Mxfp4Panels>(context, items);
  }
}

}  // namespace perigee::ops::cpu
