// The packed layouts of MXFP4 matrices.
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "ops/moe_gemm/moe_gemm.h"
#include "ops/moe_gemm/moe_layout.h"

namespace perigee::ops {
namespace {

using tensor::WeightLayout;

constexpr int64_t kPanel = 16;
constexpr int64_t kScaleColumns = 32;
constexpr int64_t kBlockCodes = kPanel * kScaleColumns / 2;
constexpr uint8_t kScaleOne = 127;  // padding rows: a scale that keeps every fast path open

void pack_tiled(const uint8_t* codes, const uint8_t* scales, int64_t row_count, int64_t k, void* packed, int64_t n_total,
                int64_t row_offset) {
  const int64_t blocks = k / kScaleColumns;
  const int64_t panel_bytes = blocks * (kBlockCodes + kPanel);
  const bool last = row_count > 0 && row_offset + row_count == n_total;
  const int64_t end = last ? (n_total + kPanel - 1) / kPanel * kPanel : row_offset + row_count;
  for (int64_t n = row_offset; n < end; ++n) {
    uint8_t* const panel = static_cast<uint8_t*>(packed) + n / kPanel * panel_bytes;
    uint8_t* const to = panel + n % kPanel * 4;
    uint8_t* const to_scales = panel + blocks * kBlockCodes + n % kPanel;
    const int64_t r = n - row_offset;
    for (int64_t i = 0; i < k / 8; ++i) {
      if (n < n_total) {
        std::memcpy(to + i * kPanel * 4, codes + r * (k / 2) + i * 4, 4);
      } else {
        std::memset(to + i * kPanel * 4, 0, 4);
      }
    }
    for (int64_t b = 0; b < blocks; ++b) {
      to_scales[b * kPanel] = n < n_total ? scales[r * blocks + b] : kScaleOne;
    }
  }
}

// Where the bits of a byte of two codes go in a lane's word, for each of the word's four registers.
struct Spread {
  uint32_t word[4][256];
  uint32_t mask[4];
};

constexpr Spread make_spread() {
  Spread s = {};
  for (int j = 0; j < 4; ++j) {
    for (int byte = 0; byte < 256; ++byte) {
      s.word[j][byte] = fragment_code(j, 0, byte & 15) | fragment_code(j, 1, byte >> 4);
    }
    s.mask[j] = s.word[j][255];
  }
  return s;
}
constexpr Spread kSpread = make_spread();

// One row of a matrix (null: zeros with scales of one) into its tile. Two rows share words: only this row's bits change, so
// rows may be packed from different threads.
void pack_fragment_row(const uint8_t* codes, const uint8_t* scales, int64_t k, uint8_t* packed, int64_t row) {
  const int64_t blocks = (k + kFragmentBlock - 1) / kFragmentBlock;
  uint8_t* const panel = packed + row / kFragmentBlock * blocks * kFragmentBlockBytes;
  const int64_t tile = row % kFragmentBlock / kPanel;
  const int64_t inside = row % kPanel;
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t* const block = panel + b * kFragmentBlockBytes;
    auto* const words = reinterpret_cast<uint32_t*>(block + tile * 512 + inside % 8 * 4 * 16);  // of four lanes
    for (int64_t pair = 0; pair < kFragmentBlock / 2; ++pair) {
      const int64_t column = b * kFragmentBlock + pair * 2;
      const uint8_t byte = codes != nullptr && column < k ? codes[column / 2] : uint8_t{0};
      const auto j = static_cast<int>(inside / 8 + pair % 8 / 4 * 2);
      std::atomic_ref<uint32_t> word(words[pair % 4 * 4 + pair / 8]);
      word.fetch_and(~kSpread.mask[j], std::memory_order_relaxed);
      word.fetch_or(kSpread.word[j][byte], std::memory_order_relaxed);
    }
    uint8_t* const to = block + kFragmentCodeBytes + tile * 32 + inside % 8 * 4 + inside / 8;
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t group = b * 2 + half;
      const uint8_t scale = scales != nullptr && group * kScaleColumns < k ? scales[group] : kScaleOne;
      to[half * 2] = static_cast<uint8_t>(scale + kFragmentScaleBias);
    }
  }
}

// The same for sixteen rows at once, which own their words.
void pack_fragment_tile(const uint8_t* codes, const uint8_t* scales, int64_t k, uint8_t* packed, int64_t row) {
  const int64_t blocks = (k + kFragmentBlock - 1) / kFragmentBlock;
  uint8_t* const panel = packed + row / kFragmentBlock * blocks * kFragmentBlockBytes;
  const int64_t tile = row % kFragmentBlock / kPanel;
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t* const block = panel + b * kFragmentBlockBytes;
    auto* const words = reinterpret_cast<uint32_t*>(block + tile * 512);
    const int64_t steps = std::min<int64_t>(4, (k - b * kFragmentBlock) / kPanel);
    for (int64_t lane = 0; lane < 32; ++lane) {
      const uint8_t* const upper = codes + lane / 4 * (k / 2) + b * kFragmentBlock / 2 + lane % 4;
      const uint8_t* const lower = upper + 8 * (k / 2);
      for (int64_t s = 0; s < 4; ++s) {
        words[lane * 4 + s] = s < steps ? kSpread.word[0][upper[s * 8]] | kSpread.word[1][lower[s * 8]] |
                                              kSpread.word[2][upper[s * 8 + 4]] | kSpread.word[3][lower[s * 8 + 4]]
                                        : 0;
      }
    }
    uint8_t* const to = block + kFragmentCodeBytes + tile * 32;
    for (int64_t inside = 0; inside < kPanel; ++inside) {
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t group = b * 2 + half;
        const uint8_t scale = group * kScaleColumns < k ? scales[inside * (k / kScaleColumns) + group] : kScaleOne;
        to[inside % 8 * 4 + inside / 8 + half * 2] = static_cast<uint8_t>(scale + kFragmentScaleBias);
      }
    }
  }
}

void pack_fragment(const uint8_t* codes, const uint8_t* scales, int64_t row_count, int64_t k, void* packed, int64_t n_total,
                   int64_t row_offset) {
  auto* const to = static_cast<uint8_t*>(packed);
  int64_t n = row_offset;
  const int64_t end = row_offset + row_count;
  while (n < end) {
    const int64_t r = n - row_offset;
    const uint8_t* const row_codes = codes + r * (k / 2);
    const uint8_t* const row_scales = scales + r * (k / kScaleColumns);
    if (n % kPanel == 0 && end - n >= kPanel) {
      pack_fragment_tile(row_codes, row_scales, k, to, n);
      n += kPanel;
    } else {
      pack_fragment_row(row_codes, row_scales, k, to, n++);
    }
  }
  if (row_count == 0 || end != n_total) return;
  for (; n % kFragmentBlock != 0; ++n) pack_fragment_row(nullptr, nullptr, k, to, n);
}

}  // namespace

int64_t moe_packed_bytes(WeightLayout layout, int64_t n, int64_t k) {
  CHECK_EQ(k % kScaleColumns, 0);
  if (layout == WeightLayout::kFragmentMxfp4) {
    const auto blocks = [](int64_t x) { return (x + kFragmentBlock - 1) / kFragmentBlock; };
    return blocks(n) * blocks(k) * kFragmentBlockBytes;
  }
  CHECK(layout == WeightLayout::kTiledMxfp4);
  return (n + kPanel - 1) / kPanel * (k / kScaleColumns) * (kBlockCodes + kPanel);
}

bool moe_packable(WeightLayout layout, const uint8_t* scales, int64_t count) {
  if (layout != WeightLayout::kFragmentMxfp4) return true;
  bool fits = true;
  for (int64_t i = 0; i < count; ++i) fits &= scales[i] <= kFragmentScaleMax;
  return fits;
}

void moe_pack_mxfp4(WeightLayout layout, const uint8_t* codes, const uint8_t* scales, int64_t row_count, int64_t k,
                    void* packed, int64_t n_total, int64_t row_offset) {
  CHECK_EQ(k % kScaleColumns, 0);
  CHECK(row_count >= 0 && row_offset >= 0 && row_offset + row_count <= n_total);
  if (layout == WeightLayout::kFragmentMxfp4) {
    return pack_fragment(codes, scales, row_count, k, packed, n_total, row_offset);
  }
  CHECK(layout == WeightLayout::kTiledMxfp4);
  pack_tiled(codes, scales, row_count, k, packed, n_total, row_offset);
}

}  // namespace perigee::ops
