#include <immintrin.h>

#include "bench/cpu/machine_loops.h"

namespace perigee::bench {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// A constant in memory: g++ 12 tells its optimiser that ldtilecfg reads eight bytes, so of a local object it would drop the rest.
constexpr TileConfig kTileConfig;

}  // namespace

void tile_products(int64_t rounds, bool fed) {
  constexpr int64_t kTileBytes = 1024;
  constexpr int64_t kRing = 8;  // rounds: 32 KiB of operands
  alignas(64) static thread_local uint32_t operands[4 * kRing * kTileBytes / 4];
  // Values of either sign between a half and two: products of zeros run at a higher clock.
  uint32_t random = 1;
  for (uint32_t& pair : operands) {
    random = random * 1664525u + 1013904223u;
    pair = (random & 0x80ff80ffu) | 0x3f003f00u;
  }
  const auto* const bytes = reinterpret_cast<const uint8_t*>(operands);
  _tile_loadconfig(&kTileConfig);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, bytes, 64);
  _tile_loadd(5, bytes + kTileBytes, 64);
  _tile_loadd(6, bytes + 2 * kTileBytes, 64);
  _tile_loadd(7, bytes + 3 * kTileBytes, 64);
  for (int64_t r = 0; r < rounds; ++r) {
    if (fed) {
      const uint8_t* const from = bytes + r % kRing * 4 * kTileBytes;
      _tile_loadd(6, from, 64);
      _tile_loadd(4, from + kTileBytes, 64);
      _tile_loadd(7, from + 2 * kTileBytes, 64);
      _tile_loadd(5, from + 3 * kTileBytes, 64);
    }
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

}  // namespace perigee::bench
