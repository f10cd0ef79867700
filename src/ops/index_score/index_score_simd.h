// What    The kernels of index_score on raw pointers: queries through the key format, one page of
//         keys to a tile, scores of several rows against a tile.
// Owner   ops/index_score. Compiled once per instruction set.
// Threads Pure functions.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "num/isa.h"
#include "num/records.h"

namespace perigee::ops::cpu {

// A tile holds the 64 keys of a page, columns innermost: tile[block of 16 keys][J][16], and their
// outer scales.
struct IndexTile {
  float* values;  // [4][J][16]
  float* scales;  // [64]
};

struct IndexRows {
  const float* q;      // [rows][I][J]
  const float* gates;  // [rows][I], scales included
  int64_t rows;
  int64_t heads;
  int64_t width;           // J
  const int64_t* columns;  // [rows]: how many keys of the tile each row sees, may be <= 0
  bf16* scores;            // row 0 at the tile's first key
  int64_t score_stride;
};

template <Isa>
struct IndexKernels {
  // One head's query through the format: q [J] -> out [J], returns the outer scale. bytes: room for
  // key_bytes.
  static float query(KeyFormat format, const bf16* q, int64_t j, uint8_t* bytes, float* out);
  // The first n keys of a page; the other columns become zero. row_major: room for 16 * round16(J)
  // numbers.
  static void tile(KeyFormat format, const uint8_t* page, int64_t j, int64_t n, float* row_major,
                   IndexTile out);
  static void score(const IndexRows& rows, IndexTile tile);
};

template <>
float IndexKernels<Isa::kGeneric>::query(KeyFormat, const bf16*, int64_t, uint8_t*, float*);
template <>
void IndexKernels<Isa::kGeneric>::tile(KeyFormat, const uint8_t*, int64_t, int64_t, float*,
                                       IndexTile);
template <>
void IndexKernels<Isa::kGeneric>::score(const IndexRows&, IndexTile);
template <>
float IndexKernels<Isa::kAvx2>::query(KeyFormat, const bf16*, int64_t, uint8_t*, float*);
template <>
void IndexKernels<Isa::kAvx2>::tile(KeyFormat, const uint8_t*, int64_t, int64_t, float*, IndexTile);
template <>
void IndexKernels<Isa::kAvx2>::score(const IndexRows&, IndexTile);
template <>
float IndexKernels<Isa::kAvx512>::query(KeyFormat, const bf16*, int64_t, uint8_t*, float*);
template <>
void IndexKernels<Isa::kAvx512>::tile(KeyFormat, const uint8_t*, int64_t, int64_t, float*,
                                      IndexTile);
template <>
void IndexKernels<Isa::kAvx512>::score(const IndexRows&, IndexTile);

}  // namespace perigee::ops::cpu
