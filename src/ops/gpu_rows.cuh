// What    What row-wise GPU operations share: the order in which a row is summed, and elementary functions.
// Owner   ops. Included by *_cuda.cu files only.
// Threads Device functions; those named block_* need all threads of a block of kRowThreads, those named warp_* one warp.
// Errors  None.
// Source  docs/kernels/arithmetic.md, "Sums over a row".
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "ops/gpu_lanes.cuh"

namespace perigee::ops::gpu {

constexpr int kRowThreads = 256;
constexpr int kLaneColumns = 4;  // neighbours that a lane sums
constexpr int kBlockColumns = kLanes * kLaneColumns;

__host__ __device__ inline int64_t row_blocks(int64_t n) { return (n + kBlockColumns - 1) / kBlockColumns; }

// A tree over 32 lanes; every lane gets the sum.
__device__ inline float warp_tree(float x) {
  for (int mask = kLanes / 2; mask > 0; mask /= 2) x = x + lane_xor(x, mask);
  return x;
}

// The sum of block `b` of a row of n columns: term(column, chain) continues a lane's chain.
template <class Term>
__device__ float warp_block_sum(int64_t b, int64_t n, Term term) {
  float chain = 0.0f;
  const int64_t first = b * kBlockColumns + threadIdx.x % kLanes * kLaneColumns;
  for (int64_t i = first; i < first + kLaneColumns && i < n; ++i) chain = term(i, chain);
  return warp_tree(chain);
}

// The sum of a row by one warp: block b joins chain b mod 32 in ascending order, then a tree over the chains.
template <class Term>
__device__ float warp_row_sum(int64_t n, Term term) {
  float chain = 0.0f;
  for (int64_t b = 0; b < row_blocks(n); ++b) {
    const float sum = warp_block_sum(b, n, term);
    if (static_cast<int64_t>(threadIdx.x % kLanes) == b % kLanes) chain = chain + sum;
  }
  return warp_tree(chain);
}

// The same sum by a block of threads. sums: shared memory for row_blocks(n) numbers.
template <class Term>
__device__ float block_row_sum(int64_t n, float* sums, Term term) {
  const int64_t blocks = row_blocks(n);
  __syncthreads();  // sums may still be read from the sum before
  for (int64_t b = threadIdx.x / kLanes; b < blocks; b += kRowThreads / kLanes) {
    const float sum = warp_block_sum(b, n, term);
    if (threadIdx.x % kLanes == 0) sums[b] = sum;
  }
  __syncthreads();
  float chain = 0.0f;
  for (int64_t b = threadIdx.x % kLanes; b < blocks; b += kLanes) chain = chain + sums[b];
  return warp_tree(chain);
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

}  // namespace perigee::ops::gpu
