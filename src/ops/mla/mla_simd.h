// What    The kernels of mla on raw pointers: records to a tile, heads of one row against a tile,
//         the final division.
// Owner   ops/mla. Compiled once per instruction set.
// Threads Pure functions.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "num/isa.h"
#include "num/records.h"

namespace perigee::ops::cpu {

// 64 decoded records, once by rows (for the values) and once by columns (for the scores). width = C
// + r.
struct MlaTile {
  float* rows;  // [64][row_stride], row_stride = width rounded up to 16
  int64_t row_stride;
  float* columns;  // [4][width][16]: four blocks of 16 slots
};

// Heads of one query row and what they have gathered so far.
struct MlaHeads {
  const float* q;  // [heads][width]
  int64_t heads;
  int64_t width;
  int64_t c;
  float scale;
  float* max;  // [heads], -inf at first
  float* sum;  // [heads], 0 at first
  float* acc;  // [heads][acc_stride], 0 at first; acc_stride = C rounded up to 16
  int64_t acc_stride;
};

template <Isa>
struct MlaKernels {
  static void queries(const bf16* q, int64_t n, float* out);
  // n records; the columns of the missing ones become zero.
  static void tile(LatentFormat format, const uint8_t* const* records, int64_t n, int64_t c,
                   int64_t r, const MlaTile& out);
  // Joins the first n slots of the tile to every head.
  static void piece(const MlaHeads& heads, const MlaTile& tile, int64_t n);
  // out [heads][C], lse [heads].
  static void finish(const MlaHeads& heads, bf16* out, float* lse);
};

template <>
void MlaKernels<Isa::kGeneric>::queries(const bf16*, int64_t, float*);
template <>
void MlaKernels<Isa::kGeneric>::tile(LatentFormat, const uint8_t* const*, int64_t, int64_t, int64_t,
                                     const MlaTile&);
template <>
void MlaKernels<Isa::kGeneric>::piece(const MlaHeads&, const MlaTile&, int64_t);
template <>
void MlaKernels<Isa::kGeneric>::finish(const MlaHeads&, bf16*, float*);
template <>
void MlaKernels<Isa::kAvx2>::queries(const bf16*, int64_t, float*);
template <>
void MlaKernels<Isa::kAvx2>::tile(LatentFormat, const uint8_t* const*, int64_t, int64_t, int64_t,
                                  const MlaTile&);
template <>
void MlaKernels<Isa::kAvx2>::piece(const MlaHeads&, const MlaTile&, int64_t);
template <>
void MlaKernels<Isa::kAvx2>::finish(const MlaHeads&, bf16*, float*);
template <>
void MlaKernels<Isa::kAvx512>::queries(const bf16*, int64_t, float*);
template <>
void MlaKernels<Isa::kAvx512>::tile(LatentFormat, const uint8_t* const*, int64_t, int64_t, int64_t,
                                    const MlaTile&);
template <>
void MlaKernels<Isa::kAvx512>::piece(const MlaHeads&, const MlaTile&, int64_t);
template <>
void MlaKernels<Isa::kAvx512>::finish(const MlaHeads&, bf16*, float*);

}  // namespace perigee::ops::cpu
