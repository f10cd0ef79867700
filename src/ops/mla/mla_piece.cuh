// What    One piece of 64 slots of attention for 16 heads: records into shared memory, scores, weights, weighted values.
// Owner   ops/mla. Included by mla_cuda.cu only.
// Threads A block of 256; functions that need a barrier before or after leave it to the caller.
// Errors  None.
// Source  docs/kernels/arithmetic.md, "Attention".
#pragma once

#include "ops/gpu_records.cuh"
#include "ops/mla/mla.h"

namespace perigee::ops::gpu::piece {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kHeads = 16;     // of a block: the rows of an instruction
constexpr int kPiece = 64;     // slots
constexpr int kSegment = 256;  // slots, from zero
constexpr int kStretch = 2048;  // slots whose segments are joined from empty, before stretches are joined
constexpr int kBlocksWanted = 264;  // two a multiprocessor: below this a row is divided among blocks
constexpr int kValueTiles = 8;  // of 8 columns, a warp
constexpr int kValuesMax = kWarps * kValueTiles * 8;
static_assert(kValuesMax == kMlaGpuLatentMax);
constexpr int kPieceStride = kPiece + 8;

struct Problem {
  const bf16* q;
  int64_t q_stride;
  bf16* out;
  int64_t out_stride;
  float* lse;
  int64_t lse_stride;
  const int32_t* positions;  // null: every position
  bool physical;             // they are physical rows
  int64_t positions_stride;
  const int32_t* counts;
  const tensor::Part* parts;
  const int32_t* part_of_row;
  tensor::PagePlace pages;
  LatentFormat format;
  float* partial;            // [rows][units][heads][C + 2]: values, maximum, sum; null: rows are not divided
  int units;                 // segments or stretches of a row that fit there
  int heads, width, values;  // width = C + r, values = C
  int steps;                 // of 16 columns
  int stride;                // of rows in shared memory
  bool wide;                 // records consist of aligned pieces of 16 bytes
  float scale;               // log2 e included
};

// 2^(from - to) for whole numbers from <= to; 0 when that is below 2^-126, and from an empty past.
__device__ inline float power(float from, float to) {
  const float d = from - to;
  return d >= -126.0f ? float_from_bits(static_cast<uint32_t>(127 + static_cast<int>(d)) << 23) : 0.0f;
}

// Sum over 64 slots of a head by one warp, a tree over the bits of the slot in the order 3, 0, 1, 2, 4, 5.
__device__ inline float piece_sum(float low, float high) {
  for (const int mask : {8, 1, 2, 4, 16}) {
    low = low + lane_xor(low, mask);
    high = high + lane_xor(high, mask);
  }
  return low + high;
}

struct Shared {
  bf16* q;        // [16][stride]
  bf16* x;        // [64][stride]
  float* scores;  // [16][64]
  bf16* weights;  // [16][72]
  float* factor;  // [16] of this piece
  float* max;     // [16] in the segment
  float* sum;
  float* stretch_max;  // [16] over the joined segments of a stretch
  float* stretch_sum;
  float* total_max;  // [16] over joined stretches
  float* total_sum;
  float* join_old;  // [16] factors of a join
  float* join_new;
  const uint8_t** record;  // [64] of the piece; null: beyond the list
};

__device__ inline Shared cut(uint8_t* memory, const Problem& p) {
  Shared s;
  s.q = reinterpret_cast<bf16*>(memory);
  s.x = s.q + kHeads * p.stride;
  s.weights = s.x + kPiece * p.stride;
  s.scores = reinterpret_cast<float*>(s.weights + kHeads * kPieceStride);
  float* at = s.scores + kHeads * kPiece;
  for (float** f : {&s.factor, &s.max, &s.sum, &s.stretch_max, &s.stretch_sum, &s.total_max, &s.total_sum, &s.join_old,
                    &s.join_new}) {
    *f = at;
    at += kHeads;
  }
  s.record = reinterpret_cast<const uint8_t**>(at);
  return s;
}

inline size_t shared_bytes(const Problem& p) {
  return static_cast<size_t>((kHeads + kPiece) * p.stride + kHeads * kPieceStride) * sizeof(bf16) +
         static_cast<size_t>(kHeads * kPiece + 9 * kHeads) * sizeof(float) + kPiece * sizeof(uint8_t*);
}

// Where the records of a piece lie.
__device__ inline void find_records(const Problem& p, const Place& place, const int32_t* list, int begin, int count,
                                    const Shared& s) {
  if (threadIdx.x >= kPiece) return;
  const tensor::PageView pages = p.pages.of(*place.part);
  const int i = begin + static_cast<int>(threadIdx.x);
  const uint8_t* record = nullptr;
  if (i < count) {
    if (p.physical) {
      record = reinterpret_cast<const uint8_t*>(p.pages.record(list[i]));
    } else {
      const int64_t position = list != nullptr ? list[i] : i;
      record = reinterpret_cast<const uint8_t*>(pages.page(position)) + position % tensor::kPageTokens * pages.token_bytes;
    }
  }
  s.record[threadIdx.x] = record;
}

__device__ inline uint32_t two(float low, float high) {
  return static_cast<uint32_t>(to_bf16(high).bits) << 16 | to_bf16(low).bits;
}

// 16 codes of e4m3 as BF16.
__device__ inline void put_e4m3(const uint4& x, bf16* to) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
  uint32_t out[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t pair = words[i / 2] >> (i % 2 * 16);
    out[i] = two(from_e4m3(static_cast<uint8_t>(pair & 0xff)), from_e4m3(static_cast<uint8_t>(pair >> 8 & 0xff)));
  }
  reinterpret_cast<uint4*>(to)[0] = {out[0], out[1], out[2], out[3]};
  reinterpret_cast<uint4*>(to)[1] = {out[4], out[5], out[6], out[7]};
}

// 32 codes of e2m1 with their two scales as BF16.
__device__ inline void put_nvfp4(const uint4& x, const uint8_t* scales, bf16* to) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const float scale = from_e4m3(scales[w / 2]);
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t byte = words[w] >> (8 * i);
      out[i] = two(from_e2m1(static_cast<uint8_t>(byte & 15)) * scale, from_e2m1(static_cast<uint8_t>(byte >> 4 & 15)) * scale);
    }
    reinterpret_cast<uint4*>(to)[w] = {out[0], out[1], out[2], out[3]};
  }
}

// Pieces of 16 bytes: what a record of these widths consists of, and where each goes.
__device__ inline void load_wide(const Problem& p, const Shared& s) {
  const int rope = p.width - p.values;
  const bool packed = p.format == LatentFormat::kNvfp4;
  const int bytes = p.format == LatentFormat::kBf16 ? 2 : 1;
  const int front = packed ? p.values / 32 : p.width * bytes / 16;  // before the other kind of pieces
  const int pieces = packed ? front + rope / 16 : front;
  for (int i = threadIdx.x; i < kPiece * pieces; i += kThreads) {
    const int slot = i / pieces;
    const int piece = i % pieces;
    const uint8_t* const record = s.record[slot];
    bf16* const row = s.x + slot * p.stride;
    const uint4 x = record != nullptr ? reinterpret_cast<const uint4*>(record)[piece] : uint4{};
    if (p.format == LatentFormat::kBf16) {
      reinterpret_cast<uint4*>(row)[piece] = x;
    } else if (packed && piece < front) {
      const uint8_t none[2] = {};
      put_nvfp4(x, record != nullptr ? record + p.values / 2 + rope + piece * 2 : none, row + piece * 32);
    } else {
      put_e4m3(x, packed ? row + p.values + (piece - front) * 16 : row + piece * 16);
    }
  }
}

// Records of a piece as BF16, zeros beyond the list and beyond the width.
__device__ inline void load_piece(const Problem& p, const Place& place, const int32_t* list, int begin, int count,
                           const Shared& s) {
  find_records(p, place, list, begin, count, s);
  __syncthreads();
  if (p.wide) return load_wide(p, s);
  for (int slot = threadIdx.x / 32; slot < kPiece; slot += kWarps) {
    bf16* const to = s.x + slot * p.stride;
    const uint8_t* const record = s.record[slot];
    for (int c = threadIdx.x % 32; c < p.steps * 16; c += 32) {
      to[c] = record != nullptr && c < p.width ? latent_value(p.format, record, p.values, p.width - p.values, c) : bf16{};
    }
  }
}

// Scores of a piece: a warp has 8 slots, one chain over all columns.
__device__ inline void score_piece(const Problem& p, int begin, int count, const Shared& s) {
  const int lane = threadIdx.x % 32;
  const int slot = threadIdx.x / 32 * 8;
  const bf16* const q = s.q + lane / 4 * p.stride + lane % 4 * 2;
  const bf16* const x = s.x + (slot + lane / 4) * p.stride + lane % 4 * 2;
  float acc[4] = {};
  for (int k = 0; k < p.steps * 16; k += 16) {
    const uint32_t a[4] = {operand(q + k), operand(q + 8 * p.stride + k), operand(q + k + 8),
                           operand(q + 8 * p.stride + k + 8)};
    const uint32_t b[2] = {operand(x + k), operand(x + k + 8)};
    mma_bf16(acc, a, b);
  }
  for (int i = 0; i < 4; ++i) {
    const int at = slot + lane % 4 * 2 + i % 2;
    s.scores[(lane / 4 + i / 2 * 8) * kPiece + at] = begin + at < count ? acc[i] : -float_from_bits(0x7f800000u);
  }
}

// Weights of a piece: a warp has two heads.
__device__ inline void weigh_piece(const Problem& p, const Shared& s) {
  const int lane = threadIdx.x % 32;
  for (int h = threadIdx.x / 32; h < kHeads; h += kWarps) {
    const float low = s.scores[h * kPiece + lane];
    const float high = s.scores[h * kPiece + lane + 32];
    float largest = fmaxf(low * p.scale, high * p.scale);
    for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, lane_xor(largest, mask));
    const float old = s.max[h];
    const float now = fmaxf(old, ceilf(largest));
    const float base = now == -float_from_bits(0x7f800000u) ? 0.0f : now;
    const bf16 a = to_bf16(fast_ex2(fmaf(low, p.scale, -base)));
    const bf16 b = to_bf16(fast_ex2(fmaf(high, p.scale, -base)));
    s.weights[h * kPieceStride + lane] = a;
    s.weights[h * kPieceStride + lane + 32] = b;
    const float sum = piece_sum(to_float(a), to_float(b));
    const float factor = power(old, now);
    warp_barrier();
    if (lane == 0) {
      s.factor[h] = factor;
      s.sum[h] = fmaf(s.sum[h], factor, sum);
      s.max[h] = now;
    }
  }
}

using Values = float[kValueTiles][4];

// Adds a piece's weighted values to the segment's.
__device__ inline void add_values(const Problem& p, const Shared& s, Values& acc) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const float upper = s.factor[g];
  const float lower = s.factor[g + 8];
#pragma unroll
  for (int i = 0; i < kValueTiles; ++i) {
    const int column = (warp * kValueTiles + i) * 8;
    if (column >= p.values) break;
    for (int j = 0; j < 4; ++j) acc[i][j] = acc[i][j] * (j < 2 ? upper : lower);
    const bf16* const x = s.x + column + g;
    for (int k = 0; k < kPiece; k += 16) {
      const bf16* const w = s.weights + g * kPieceStride + k + t * 2;
      const uint32_t a[4] = {operand(w), operand(w + 8 * kPieceStride), operand(w + 8),
                             operand(w + 8 * kPieceStride + 8)};
      const bf16* const from = x + (k + t * 2) * p.stride;
      const uint32_t b[2] = {static_cast<uint32_t>(from[p.stride].bits) << 16 | from[0].bits,
                             static_cast<uint32_t>(from[9 * p.stride].bits) << 16 | from[8 * p.stride].bits};
      mma_bf16(acc[i], a, b);
    }
  }
}

}  // namespace perigee::ops::gpu::piece
