#include <algorithm>

#include "ops/gemm/gemm.h"
#include "ops/gpu_launch.h"
#include "ops/gpu_mma.cuh"

namespace perigee::ops::cuda {
namespace {

constexpr int kTile = 16;       // outputs of a warp, columns of a step
constexpr int kTokens = 8;      // of one instruction
constexpr int kFewWarps = 8;    // segments at once, few tokens
constexpr int kFewTiles = 4;    // most token tiles of a block there
constexpr int kManyWarps = 8;   // tiles of outputs, many tokens
constexpr int kManyTiles = 8;   // token tiles of a block there
constexpr int kManyColumns = 64;
constexpr int kManyStride = kManyColumns + 8;  // rows in shared memory: no two lanes of a load meet in a bank
constexpr int kItemsMax = 48;   // of a launch: kernel parameters hold 4 KB

struct Item {
  const uint4* w;
  const bf16* x;
  void* out;
  int64_t x_stride;
  int64_t out_stride;
  int t, n, k;
  int segment;    // columns
  bool words;     // rows of x can be read in words of two columns
  bool full;      // out is FP32
};

struct Items {
  Item item[kItemsMax];
};

__device__ uint32_t two_columns(const Item& item, int token, int64_t column) {
  return token < item.t ? gpu::operand(item.x + token * item.x_stride, column, item.k, item.words) : 0u;
}

__device__ void store(const Item& item, int token, int output, float value) {
  if (token >= item.t || output >= item.n) return;
  const int64_t at = token * item.out_stride + output;
  if (item.full) {
    static_cast<float*>(item.out)[at] = value;
  } else {
    static_cast<bf16*>(item.out)[at] = to_bf16(value);
  }
}

// Few tokens: a block has 16 outputs, a warp takes a segment; their sums meet in shared memory.
template <int kTiles>
__global__ void __launch_bounds__(kFewWarps * 32) few_kernel(const __grid_constant__ Items items) {
  constexpr int kUnroll = 8;
  __shared__ float sums[kFewWarps][kTiles][kTile * kTokens];
  const Item& item = items.item[blockIdx.z];
  const int output = blockIdx.x * kTile;
  const int token = blockIdx.y * kTiles * kTokens;
  if (output >= item.n || token >= item.t) return;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int steps = (item.k + kTile - 1) / kTile;
  const int segments = (item.k + item.segment - 1) / item.segment;
  const uint4* const w = item.w + static_cast<int64_t>(blockIdx.x) * steps * 32 + lane;
  constexpr int kSums = kTiles * kTile * kTokens;
  float total[(kSums + kFewWarps * 32 - 1) / (kFewWarps * 32)];
  for (int first = 0; first < segments; first += kFewWarps) {
    float acc[kTiles][4] = {};
    const int begin = (first + warp) * item.segment / kTile;
    const int end = min(steps, begin + item.segment / kTile);
    for (int s = begin; s < end; s += kUnroll) {
      uint4 a[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) a[u] = s + u < end ? w[static_cast<int64_t>(s + u) * 32] : uint4{};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (s + u >= end) break;
        const uint32_t fragment[4] = {a[u].x, a[u].y, a[u].z, a[u].w};
        const int64_t column = static_cast<int64_t>(s + u) * kTile + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const int t = token + i * kTokens + lane / 4;
          const uint32_t b[2] = {two_columns(item, t, column), two_columns(item, t, column + 8)};
          gpu::mma_bf16(acc[i], fragment, b);
        }
      }
    }
    __syncthreads();
    for (int i = 0; i < kTiles; ++i) {
      for (int j = 0; j < 4; ++j) sums[warp][i][(lane / 4 + j / 2 * 8) * kTokens + lane % 4 * 2 + j % 2] = acc[i][j];
    }
    __syncthreads();
    const int now = min(kFewWarps, segments - first);
    for (int e = threadIdx.x, n = 0; e < kSums; e += kFewWarps * 32, ++n) {
      for (int j = 0; j < now; ++j) {
        const float sum = sums[j][e / (kTile * kTokens)][e % (kTile * kTokens)];
        total[n] = first == 0 && j == 0 ? sum : total[n] + sum;
      }
    }
  }
  for (int e = threadIdx.x, n = 0; e < kSums; e += kFewWarps * 32, ++n) {
    const int in_tile = e % (kTile * kTokens);
    store(item, token + e / (kTile * kTokens) * kTokens + in_tile % kTokens, output + in_tile / kTokens,
          segments == 0 ? 0.0f : total[n]);
  }
}

// Many tokens: a block has 128 outputs and 64 tokens, whose columns pass through shared memory; a warp has 16 outputs.
__global__ void __launch_bounds__(kManyWarps * 32) many_kernel(const __grid_constant__ Items items) {
  constexpr int kBlockTokens = kManyTiles * kTokens;
  constexpr int kWords = kManyColumns / 2;
  constexpr int kLoads = kBlockTokens * kWords / (kManyWarps * 32);
  constexpr int kSteps = kManyColumns / kTile;
  __shared__ __align__(16) uint16_t tile[2][kBlockTokens * kManyStride];
  const Item& item = items.item[blockIdx.z];
  const int token = blockIdx.x * kBlockTokens;
  const int lane = threadIdx.x % 32;
  const int output = (blockIdx.y * kManyWarps + threadIdx.x / 32) * kTile;
  if (static_cast<int>(blockIdx.y) * kManyWarps * kTile >= item.n || token >= item.t) return;
  const int steps = (item.k + kTile - 1) / kTile;
  const int rounds = (steps + kSteps - 1) / kSteps;
  const int per_segment = item.segment / kManyColumns;
  const bool live = output < item.n;
  const uint4* const w = item.w + (live ? static_cast<int64_t>(output / kTile) * steps * 32 : 0) + lane;
  uint32_t words[kLoads];
  const auto fetch = [&](int round) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int e = threadIdx.x + i * kManyWarps * 32;
      words[i] = two_columns(item, token + e / kWords, static_cast<int64_t>(round) * kManyColumns + e % kWords * 2);
    }
  };
  const auto put = [&](int buffer) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int e = threadIdx.x + i * kManyWarps * 32;
      *reinterpret_cast<uint32_t*>(&tile[buffer][e / kWords * kManyStride + e % kWords * 2]) = words[i];
    }
  };
  uint4 a[kSteps];
  const auto weights = [&](int round) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      a[i] = round * kSteps + i < steps ? w[static_cast<int64_t>(round * kSteps + i) * 32] : uint4{};
    }
  };
  float acc[kManyTiles][4] = {};
  float total[kManyTiles][4] = {};
  if (rounds > 0) {
    fetch(0);
    put(0);
    weights(0);
  }
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    uint32_t now[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      now[i][0] = a[i].x, now[i][1] = a[i].y, now[i][2] = a[i].z, now[i][3] = a[i].w;
    }
    const bool more = round + 1 < rounds;
    if (more) {
      fetch(round + 1);
      weights(round + 1);
    }
    const uint16_t* const from = tile[round % 2];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (round * kSteps + i >= steps) break;
#pragma unroll
      for (int j = 0; j < kManyTiles; ++j) {
        const uint16_t* const p = from + (j * kTokens + lane / 4) * kManyStride + i * kTile + lane % 4 * 2;
        const uint32_t b[2] = {gpu::operand(p), gpu::operand(p + 8)};
        gpu::mma_bf16(acc[j], now[i], b);
      }
    }
    if (more) put((round + 1) % 2);
    if ((round + 1) % per_segment == 0 || !more) {
      const bool first = round < per_segment;
      for (int j = 0; j < kManyTiles; ++j) {
        for (int i = 0; i < 4; ++i) {
          total[j][i] = first ? acc[j][i] : total[j][i] + acc[j][i];
          acc[j][i] = 0;
        }
      }
    }
    __syncthreads();
  }
  for (int j = 0; j < kManyTiles; ++j) {
    for (int i = 0; i < 4; ++i) {
      store(item, token + j * kTokens + lane % 4 * 2 + i % 2, output + lane / 4 + i / 2 * 8, total[j][i]);
    }
  }
}

Item describe(const GemmItem& from) {
  const auto k = static_cast<int>(from.w.k);
  const bool words = reinterpret_cast<uintptr_t>(from.x.data) % 4 == 0 && from.x.row_stride % 2 == 0 && k % 2 == 0;
  return {static_cast<const uint4*>(from.w.data), from.x.as<bf16>(), from.out.data, from.x.row_stride, from.out.row_stride,
          static_cast<int>(from.x.rows()), static_cast<int>(from.w.n), k, static_cast<int>(gemm_gpu_segment(k)), words,
          from.out.dtype == tensor::DType::kF32};
}

unsigned blocks(int64_t n, int64_t width) { return static_cast<unsigned>((n + width - 1) / width); }

void launch(cudaStream_t stream, const Items& items, unsigned count, int tokens, int outputs) {
  if (tokens <= kTokens) {
    few_kernel<1><<<dim3(blocks(outputs, kTile), 1, count), kFewWarps * 32, 0, stream>>>(items);
  } else if (tokens <= 2 * kTokens) {
    few_kernel<2><<<dim3(blocks(outputs, kTile), 1, count), kFewWarps * 32, 0, stream>>>(items);
  } else if (tokens <= kFewTiles * kTokens) {
    few_kernel<kFewTiles><<<dim3(blocks(outputs, kTile), 1, count), kFewWarps * 32, 0, stream>>>(items);
  } else {
    const dim3 grid(blocks(tokens, kManyTiles * kTokens), blocks(outputs, kManyWarps * kTile), count);
    many_kernel<<<grid, kManyWarps * 32, 0, stream>>>(items);
  }
  gpu::check_launch("gemm");
}

}  // namespace

void gemm_batched(const Context& context, std::span<const GemmItem> items) {
  Items now;
  unsigned count = 0;
  int tokens = 0;
  int outputs = 0;
  const auto flush = [&] {
    if (count > 0 && tokens > 0 && outputs > 0) launch(gpu::stream_of(context), now, count, tokens, outputs);
    count = 0;
    tokens = outputs = 0;
  };
  for (const GemmItem& item : items) {
    now.item[count] = describe(item);
    tokens = std::max(tokens, now.item[count].t);
    outputs = std::max(outputs, now.item[count].n);
    if (++count == kItemsMax) flush();
  }
  flush();
}

}  // namespace perigee::ops::cuda
