// What    AMX tile products; compiled with the tile instructions and run only where the processor
// has them. Owner   ops/gemm. Threads Tile registers belong to the calling thread: AmxTiles
// configures them for a scope. Errors  None.
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

// row_tiles (1 or 2) x panels (1 or 2) tiles over `blocks` blocks of 32 columns: acc = sum, or acc
// + sum unless first. acc has 16 FP32 outputs a tile row, `acc_stride` floats between rows.
void amx_block(const std::byte* a, int64_t a_tile_bytes, int row_tiles, const uint8_t* w,
               int64_t w_panel_bytes, int panels, int64_t blocks, bool first, float* acc,
               int64_t acc_stride);

#endif

}  // namespace perigee::ops::cpu
