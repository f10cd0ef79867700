#include <algorithm>

#include "ops/gpu_launch.h"
#include "ops/gpu_records.cuh"
#include "ops/mla/mla.h"

namespace perigee::ops::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kHeads = 16;     // of a block: the rows of an instruction
constexpr int kPiece = 64;     // slots
constexpr int kSegment = 256;  // slots, from zero
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
  int64_t positions_stride;
  const int32_t* counts;
  const tensor::Part* parts;
  const int32_t* part_of_row;
  tensor::PagePlace pages;
  LatentFormat format;
  int heads, width, values;  // width = C + r, values = C
  int steps;                 // of 16 columns
  int stride;                // of rows in shared memory
  float scale;               // log2 e included
};

// 2^(from - to) for whole numbers from <= to; 0 when that is below 2^-126, and from an empty past.
__device__ float power(float from, float to) {
  const float d = from - to;
  return d >= -126.0f ? float_from_bits(static_cast<uint32_t>(127 + static_cast<int>(d)) << 23) : 0.0f;
}

// Sum over 64 slots of a head by one warp, a tree over the bits of the slot in the order 3, 0, 1, 2, 4, 5.
__device__ float piece_sum(float low, float high) {
  for (const int mask : {8, 1, 2, 4, 16}) {
    low = low + gpu::lane_xor(low, mask);
    high = high + gpu::lane_xor(high, mask);
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
  float* total_max;  // [16] over joined segments
  float* total_sum;
  float* join_old;  // [16] factors of a join
  float* join_new;
};

__device__ Shared cut(uint8_t* memory, const Problem& p) {
  Shared s;
  s.q = reinterpret_cast<bf16*>(memory);
  s.x = s.q + kHeads * p.stride;
  s.weights = s.x + kPiece * p.stride;
  s.scores = reinterpret_cast<float*>(s.weights + kHeads * kPieceStride);
  float* at = s.scores + kHeads * kPiece;
  for (float** f : {&s.factor, &s.max, &s.sum, &s.total_max, &s.total_sum, &s.join_old, &s.join_new}) {
    *f = at;
    at += kHeads;
  }
  return s;
}

size_t shared_bytes(const Problem& p) {
  return static_cast<size_t>((kHeads + kPiece) * p.stride + kHeads * kPieceStride) * sizeof(bf16) +
         static_cast<size_t>(kHeads * kPiece + 7 * kHeads) * sizeof(float);
}

// Records of a piece as BF16, zeros beyond the list and beyond the width.
__device__ void load_piece(const Problem& p, const gpu::Place& place, const int32_t* list, int begin, int count,
                           const Shared& s) {
  const tensor::PageView pages = p.pages.of(*place.part);
  for (int slot = threadIdx.x / 32; slot < kPiece; slot += kWarps) {
    bf16* const to = s.x + slot * p.stride;
    const int i = begin + slot;
    const uint8_t* record = nullptr;
    if (i < count) {
      const int64_t position = list != nullptr ? list[i] : i;
      record = reinterpret_cast<const uint8_t*>(pages.page(position)) + position % tensor::kPageTokens * pages.token_bytes;
    }
    for (int c = threadIdx.x % 32; c < p.steps * 16; c += 32) {
      to[c] = record != nullptr && c < p.width ? gpu::latent_value(p.format, record, p.values, p.width - p.values, c) : bf16{};
    }
  }
}

// Scores of a piece: a warp has 8 slots, one chain over all columns.
__device__ void score_piece(const Problem& p, int begin, int count, const Shared& s) {
  const int lane = threadIdx.x % 32;
  const int slot = threadIdx.x / 32 * 8;
  const bf16* const q = s.q + lane / 4 * p.stride + lane % 4 * 2;
  const bf16* const x = s.x + (slot + lane / 4) * p.stride + lane % 4 * 2;
  float acc[4] = {};
  for (int k = 0; k < p.steps * 16; k += 16) {
    const uint32_t a[4] = {gpu::operand(q + k), gpu::operand(q + 8 * p.stride + k), gpu::operand(q + k + 8), gpu::operand(q + 8 * p.stride + k + 8)};
    const uint32_t b[2] = {gpu::operand(x + k), gpu::operand(x + k + 8)};
    gpu::mma_bf16(acc, a, b);
  }
  for (int i = 0; i < 4; ++i) {
    const int at = slot + lane % 4 * 2 + i % 2;
    s.scores[(lane / 4 + i / 2 * 8) * kPiece + at] = begin + at < count ? acc[i] : -float_from_bits(0x7f800000u);
  }
}

// Weights of a piece: a warp has two heads.
__device__ void weigh_piece(const Problem& p, const Shared& s) {
  const int lane = threadIdx.x % 32;
  for (int h = threadIdx.x / 32; h < kHeads; h += kWarps) {
    const float low = s.scores[h * kPiece + lane];
    const float high = s.scores[h * kPiece + lane + 32];
    float largest = fmaxf(low * p.scale, high * p.scale);
    for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, gpu::lane_xor(largest, mask));
    const float old = s.max[h];
    const float now = fmaxf(old, ceilf(largest));
    const float base = now == -float_from_bits(0x7f800000u) ? 0.0f : now;
    const bf16 a = to_bf16(gpu::fast_ex2(fmaf(low, p.scale, -base)));
    const bf16 b = to_bf16(gpu::fast_ex2(fmaf(high, p.scale, -base)));
    s.weights[h * kPieceStride + lane] = a;
    s.weights[h * kPieceStride + lane + 32] = b;
    const float sum = piece_sum(to_float(a), to_float(b));
    const float factor = power(old, now);
    gpu::warp_barrier();
    if (lane == 0) {
      s.factor[h] = factor;
      s.sum[h] = fmaf(s.sum[h], factor, sum);
      s.max[h] = now;
    }
  }
}

using Values = float[kValueTiles][4];

// Adds a piece's weighted values to the segment's.
__device__ void add_values(const Problem& p, const Shared& s, Values& acc) {
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
      const uint32_t a[4] = {gpu::operand(w), gpu::operand(w + 8 * kPieceStride), gpu::operand(w + 8), gpu::operand(w + 8 * kPieceStride + 8)};
      const bf16* const from = x + (k + t * 2) * p.stride;
      const uint32_t b[2] = {static_cast<uint32_t>(from[p.stride].bits) << 16 | from[0].bits,
                             static_cast<uint32_t>(from[9 * p.stride].bits) << 16 | from[8 * p.stride].bits};
      gpu::mma_bf16(acc[i], a, b);
    }
  }
}

// Joins the finished segment to those before it.
__device__ void join(const Shared& s, Values& acc, Values& total) {
  if (threadIdx.x < kHeads) {
    const int h = threadIdx.x;
    const float now = fmaxf(s.total_max[h], s.max[h]);
    s.join_old[h] = power(s.total_max[h], now);
    s.join_new[h] = power(s.max[h], now);
    s.total_sum[h] = fmaf(s.total_sum[h], s.join_old[h], s.sum[h] * s.join_new[h]);
    s.total_max[h] = now;
    s.max[h] = -float_from_bits(0x7f800000u);
    s.sum[h] = 0;
  }
  __syncthreads();
  const int g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < kValueTiles; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int h = g + j / 2 * 8;
      total[i][j] = fmaf(total[i][j], s.join_old[h], acc[i][j] * s.join_new[h]);
      acc[i][j] = 0;
    }
  }
}

__global__ void __launch_bounds__(kThreads) mla_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(16) uint8_t memory[];
  const Shared s = cut(memory, p);
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y * kHeads;
  const gpu::Place place = gpu::place_of(p.parts, p.part_of_row, row);
  if (place.part == nullptr) return;
  const int32_t* const list = p.positions != nullptr ? p.positions + row * p.positions_stride : nullptr;
  const int count = list != nullptr ? p.counts[row] : static_cast<int>(place.position + 1);
  for (int i = threadIdx.x; i < kHeads * p.steps * 16; i += kThreads) {
    const int h = i / (p.steps * 16);
    const int c = i % (p.steps * 16);
    const bool inside = head + h < p.heads && c < p.width;
    s.q[h * p.stride + c] = inside ? p.q[row * p.q_stride + (head + h) * p.width + c] : bf16{};
  }
  if (threadIdx.x < kHeads) {
    s.max[threadIdx.x] = s.total_max[threadIdx.x] = -float_from_bits(0x7f800000u);
    s.sum[threadIdx.x] = s.total_sum[threadIdx.x] = 0;
  }
  Values acc = {};
  Values total = {};
  for (int begin = 0; begin < count; begin += kPiece) {
    __syncthreads();
    load_piece(p, place, list, begin, count, s);
    __syncthreads();
    score_piece(p, begin, count, s);
    __syncthreads();
    weigh_piece(p, s);
    __syncthreads();
    add_values(p, s, acc);
    if ((begin + kPiece) % kSegment == 0 || begin + kPiece >= count) join(s, acc, total);
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < kValueTiles; ++i) {
    const int column = (threadIdx.x / 32 * kValueTiles + i) * 8 + lane % 4 * 2;
    for (int j = 0; j < 4; ++j) {
      const int h = lane / 4 + j / 2 * 8;
      if (head + h >= p.heads || column + j % 2 >= p.values) continue;
      const float sum = s.total_sum[h];
      p.out[row * p.out_stride + (head + h) * p.values + column + j % 2] = to_bf16(sum == 0 ? 0.0f : total[i][j] * (1.0f / sum));
    }
  }
  if (threadIdx.x < kHeads && head + static_cast<int>(threadIdx.x) < p.heads) {
    constexpr float kLn2 = 0.69314718055994531f;
    const float sum = s.total_sum[threadIdx.x];
    p.lse[row * p.lse_stride + head + threadIdx.x] =
        sum == 0 ? -float_from_bits(0x7f800000u) : (s.total_max[threadIdx.x] + log2f(sum)) * kLn2;
  }
}

}  // namespace

void mla(const Context& context, const Tensor& q, LatentFormat format, int64_t latent_width, double scale,
         const tensor::Parts& parts, const tensor::PagePlace& latents, const Selection* selection, const Tensor& out,
         const Tensor& lse) {
  if (q.size() == 0) return;
  CHECK_LE(latent_width, kValuesMax);
  constexpr double kLog2E = 1.4426950408889634073599;
  Problem p = {};
  p.q = q.as<bf16>();
  p.q_stride = q.row_stride;
  p.out = out.as<bf16>();
  p.out_stride = out.row_stride;
  p.lse = lse.as<float>();
  p.lse_stride = lse.row_stride;
  if (selection != nullptr) {
    p.positions = selection->positions.as<int32_t>();
    p.positions_stride = selection->positions.row_stride;
    p.counts = selection->counts.as<int32_t>();
  }
  p.parts = parts.device;
  p.part_of_row = parts.part_of_row;
  p.pages = latents;
  p.format = format;
  p.heads = static_cast<int>(q.dims[1]);
  p.width = static_cast<int>(q.dims[2]);
  p.values = static_cast<int>(latent_width);
  p.steps = (p.width + 15) / 16;
  p.stride = p.steps * 16 + 8;
  p.scale = static_cast<float>(scale * kLog2E);
  const size_t bytes = shared_bytes(p);
  gpu::allow_shared(reinterpret_cast<const void*>(mla_kernel), bytes, "mla");
  const dim3 grid(static_cast<unsigned>(q.rows()), static_cast<unsigned>((p.heads + kHeads - 1) / kHeads));
  mla_kernel<<<grid, kThreads, bytes, gpu::stream_of(context)>>>(p);
  gpu::check_launch("mla");
}

}  // namespace perigee::ops::cuda
