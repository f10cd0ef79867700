// What    AMX tile products; compiled with the tile instructions and run only where the processor has them.
// Owner   ops/gemm.
// Threads Tile registers belong to the calling thread: AmxTiles configures them for a scope.
// Errors  None.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perigee::ops::cpu {

#if defined(__x86_64__)

// Configures all eight tiles as 16 rows of 64 bytes; releases them at the end, so that the system
// stops saving them.
class AmxTiles {
 public:
  AmxTiles();
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
  ~AmxTiles();
};

// Up to 2 x 2 tiles over `blocks` blocks of 32 columns: acc = sum, or acc + sum unless first.
struct AmxBlock {
  const std::byte* a = nullptr;  // [row tile][block][16][32]
  int64_t a_tile_bytes = 0;      // between row tiles
  int row_tiles = 2;
  const uint8_t* w = nullptr;  // [panel][block][16 pairs of columns][16][2]
  int64_t w_panel_bytes = 0;   // between panels
  int panels = 2;
  int64_t blocks = 0;
  bool first = true;
  float* acc = nullptr;          // [panel][row tile][16][16]
  int64_t acc_panel_floats = 0;  // between panels
};
void amx_block(const AmxBlock& block);

#endif

}  // namespace perigee::ops::cpu
