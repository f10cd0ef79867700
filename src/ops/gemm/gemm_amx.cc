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

constexpr int kTileStride = 64;  // rows of a tile are neighbours
constexpr int64_t kTileBytes = 1024;

// Accumulators are tiles 0..3 (row tile, panel), activations 4 and 5, weights 6 and 7. Tile numbers are immediates.
template <int kRows, int kPanels>
void multiply(const AmxBlock& x) {
  float* const acc = x.acc;
  float* const beside = acc + x.acc_panel_floats;
  if (x.first) {
    _tile_zero(0);
    if constexpr (kPanels == 2) _tile_zero(1);
    if constexpr (kRows == 2) _tile_zero(2);
    if constexpr (kRows == 2 && kPanels == 2) _tile_zero(3);
  } else {
    _tile_loadd(0, acc, kTileStride);
    if constexpr (kPanels == 2) _tile_loadd(1, beside, kTileStride);
    if constexpr (kRows == 2) _tile_loadd(2, acc + 256, kTileStride);
    if constexpr (kRows == 2 && kPanels == 2) _tile_loadd(3, beside + 256, kTileStride);
  }
  for (int64_t b = 0; b < x.blocks; ++b) {
    const std::byte* const ab = x.a + b * kTileBytes;
    const uint8_t* const wb = x.w + b * kTileBytes;
    _tile_loadd(6, wb, kTileStride);
    _tile_loadd(4, ab, kTileStride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels == 2) {
      _tile_loadd(7, wb + x.w_panel_bytes, kTileStride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRows == 2) {
      _tile_loadd(5, ab + x.a_tile_bytes, kTileStride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kPanels == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, acc, kTileStride);
  if constexpr (kPanels == 2) _tile_stored(1, beside, kTileStride);
  if constexpr (kRows == 2) _tile_stored(2, acc + 256, kTileStride);
  if constexpr (kRows == 2 && kPanels == 2) _tile_stored(3, beside + 256, kTileStride);
}

}  // namespace

AmxTiles::AmxTiles() {
  _tile_loadconfig(&kTileConfig);
}

AmxTiles::~AmxTiles() {
  _tile_release();
}

void amx_block(const AmxBlock& block) {
  if (block.row_tiles == 2 && block.panels == 2) {
    multiply<2, 2>(block);
  } else if (block.row_tiles == 2) {
    multiply<2, 1>(block);
  } else if (block.panels == 2) {
    multiply<1, 2>(block);
  } else {
    multiply<1, 1>(block);
  }
}

}  // namespace perigee::ops::cpu
