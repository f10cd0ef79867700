// What    The kernels of index_score on raw pointers: queries through the key format, one page of keys to panels, dots, and
//         what makes scores of them.
// Owner   ops/index_score. Compiled once per instruction set; matrix tiles (ops/gemm) take the place of dots.
// Threads Pure functions.
// Errors  None.
//
// A vector is one head of one row. A dot is cut at the groups of FP8 scales (one group in every other format):
// dots[group][panel of 16 keys][vector, padded to 16][16].
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "num/isa.h"
#include "num/records.h"

namespace perigee::ops::cpu {

constexpr int64_t kIndexBlock = 32;   // columns of a block of the product, as in ops/gemm
constexpr int64_t kIndexPanels = 4;   // of 16 keys: a page
constexpr int64_t kIndexTile = 1024;  // bytes of one block of a panel

// Width of a key cut into blocks and groups.
struct IndexWidth {
  int64_t width = 0;         // J
  int64_t blocks = 0;        // of kIndexBlock columns
  int64_t groups = 0;        // with scales of their own
  int64_t group_blocks = 0;  // of every group but the last

  int64_t padded() const { return blocks * kIndexBlock; }
};

inline IndexWidth index_width(KeyFormat format, int64_t j) {
  IndexWidth w;
  w.width = j;
  w.blocks = (j + kIndexBlock - 1) / kIndexBlock;
  const bool cut = format == KeyFormat::kFp8;
  w.groups = cut ? (j + kFp8KeyGroup - 1) / kFp8KeyGroup : 1;
  w.group_blocks = cut ? kFp8KeyGroup / kIndexBlock : w.blocks;
  return w;
}

// The 64 keys of a page: pairs of columns innermost, as matrix tiles want them.
struct IndexPanels {
  uint8_t* values;  // [panel][block][16 pairs][16 keys][2]
  float* scales;    // [group][64]
};

// Rows that share one set of dots.
struct IndexRows {
  const float* gates;         // [rows][I], with the score's constant factor
  const float* query_scales;  // [rows][I][groups]
  int64_t rows;
  int64_t heads;
  int64_t groups;
  int64_t padded_vectors;  // rows x heads, up to a multiple of 16
  const int64_t* columns;  // [rows]: how many keys of the page each row sees, may be <= 0
  bf16* scores;            // row 0 at the page's first key
  int64_t score_stride;
};

template <Isa>
struct IndexKernels {
  // One head's query through the format: q [J] -> out [padded], zeros behind; scales [groups]. bytes: room for key_bytes.
  static void query(KeyFormat format, const IndexWidth& w, const bf16* q, uint8_t* bytes, bf16* out, float* scales);
  // The first n keys of a page; the others become zero. rows: room for 16 padded keys.
  static void panels(KeyFormat format, const IndexWidth& w, const uint8_t* page, int64_t n, bf16* rows, IndexPanels out);
  // dots of x [vectors][padded] in FP32.
  static void dots(const IndexWidth& w, const float* x, int64_t vectors, const uint8_t* panels, float* out);
  static void scores(const IndexRows& rows, const float* dots, const float* key_scales);
};

template <>
void IndexKernels<Isa::kGeneric>::query(KeyFormat, const IndexWidth&, const bf16*, uint8_t*, bf16*, float*);
template <>
void IndexKernels<Isa::kGeneric>::panels(KeyFormat, const IndexWidth&, const uint8_t*, int64_t, bf16*, IndexPanels);
template <>
void IndexKernels<Isa::kGeneric>::dots(const IndexWidth&, const float*, int64_t, const uint8_t*, float*);
template <>
void IndexKernels<Isa::kGeneric>::scores(const IndexRows&, const float*, const float*);
template <>
void IndexKernels<Isa::kAvx2>::query(KeyFormat, const IndexWidth&, const bf16*, uint8_t*, bf16*, float*);
template <>
void IndexKernels<Isa::kAvx2>::panels(KeyFormat, const IndexWidth&, const uint8_t*, int64_t, bf16*, IndexPanels);
template <>
void IndexKernels<Isa::kAvx2>::dots(const IndexWidth&, const float*, int64_t, const uint8_t*, float*);
template <>
void IndexKernels<Isa::kAvx2>::scores(const IndexRows&, const float*, const float*);
template <>
void IndexKernels<Isa::kAvx512>::query(KeyFormat, const IndexWidth&, const bf16*, uint8_t*, bf16*, float*);
template <>
void IndexKernels<Isa::kAvx512>::panels(KeyFormat, const IndexWidth&, const uint8_t*, int64_t, bf16*, IndexPanels);
template <>
void IndexKernels<Isa::kAvx512>::dots(const IndexWidth&, const float*, int64_t, const uint8_t*, float*);
template <>
void IndexKernels<Isa::kAvx512>::scores(const IndexRows&, const float*, const float*);

}  // namespace perigee::ops::cpu
