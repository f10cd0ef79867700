#include "ops/gemm/gemm_amx.h"

#include <immintrin.h>

namespace perigee::ops::cpu {
namespace {

// Operand of ldtilecfg, palette 1.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// A constant in memory: g++ 12 tells its optimiser that ldtilecfg reads eight bytes, so of a local object it would drop the rest.
constexpr TileConfig kTileConfig;

constexpr int kTileStride = 64;  // packed operands: rows of a tile are neighbours
constexpr int64_t kTileBytes = 1024;

// Accumulators are tiles 0..3 (row tile, panel), activations 4 and 5, weights 6 and 7. Tile numbers
// are immediates.
template <int kRows, int kPanels>
void block(const std::byte* a, int64_t a_tile_bytes, const uint8_t* w, int64_t w_panel_bytes,
           int64_t blocks, bool first, float* acc, int64_t acc_stride) {
  const int64_t acc_bytes = acc_stride * static_cast<int64_t>(sizeof(float));
  float* const below = acc + 16 * acc_stride;
  if (first) {
    _tile_zero(0);
    if constexpr (kPanels == 2) _tile_zero(1);
    if constexpr (kRows == 2) _tile_zero(2);
    if constexpr (kRows == 2 && kPanels == 2) _tile_zero(3);
  } else {
    _tile_loadd(0, acc, acc_bytes);
    if constexpr (kPanels == 2) _tile_loadd(1, acc + 16, acc_bytes);
    if constexpr (kRows == 2) _tile_loadd(2, below, acc_bytes);
    if constexpr (kRows == 2 && kPanels == 2) _tile_loadd(3, below + 16, acc_bytes);
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const std::byte* const ab = a + b * kTileBytes;
    const uint8_t* const wb = w + b * kTileBytes;
    _tile_loadd(6, wb, kTileStride);
    _tile_loadd(4, ab, kTileStride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels == 2) {
      _tile_loadd(7, wb + w_panel_bytes, kTileStride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRows == 2) {
      _tile_loadd(5, ab + a_tile_bytes, kTileStride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kPanels == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, acc, acc_bytes);
  if constexpr (kPanels == 2) _tile_stored(1, acc + 16, acc_bytes);
  if constexpr (kRows == 2) _tile_stored(2, below, acc_bytes);
  if constexpr (kRows == 2 && kPanels == 2) _tile_stored(3, below + 16, acc_bytes);
}

}  // namespace

AmxTiles::AmxTiles() {
  _tile_loadconfig(&kTileConfig);
}

AmxTiles::~AmxTiles() {
  _tile_release();
}

void amx_block(const std::byte* a, int64_t a_tile_bytes, int row_tiles, const uint8_t* w,
               int64_t w_panel_bytes, int panels, int64_t blocks, bool first, float* acc,
               int64_t acc_stride) {
  if (row_tiles == 2 && panels == 2) {
    block<2, 2>(a, a_tile_bytes, w, w_panel_bytes, blocks, first, acc, acc_stride);
  } else if (row_tiles == 2) {
    block<2, 1>(a, a_tile_bytes, w, w_panel_bytes, blocks, first, acc, acc_stride);
  } else if (panels == 2) {
    block<1, 2>(a, a_tile_bytes, w, w_panel_bytes, blocks, first, acc, acc_stride);
  } else {
    block<1, 1>(a, a_tile_bytes, w, w_panel_bytes, blocks, first, acc, acc_stride);
  }
}

}  // namespace perigee::ops::cpu
