#include "matrix_rate.h"

#include "ops/gpu_launch.h"
#include "ops/gpu_mma.cuh"

namespace perigee::bench::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 2;       // of a multiprocessor
constexpr int kProducts = 8;     // independent ones of a warp, so that none waits for the one before
constexpr double kFlops = 2.0 * 16 * 8 * 16;  // of one product of a warp

// Two BF16 of either sign, half a unit to two in size: products of zeros would run faster than a model's.
__device__ uint32_t two_values(uint32_t seed) {
  uint32_t x = seed * 0x9e3779b9u + 0x85ebca6bu;
  x = (x ^ (x >> 15)) * 0x2c1b3c6du;
  x ^= x >> 13;
  return (x & 0x80ff80ffu) | 0x3f003f00u;
}

__global__ void __launch_bounds__(kThreads) matrix_loop(int64_t rounds, float* sink) {
  const uint32_t seed = (blockIdx.x * kThreads + threadIdx.x) * 64;
  float c[kProducts][4] = {};
  uint32_t a[4];
  uint32_t b[kProducts][2];
  for (uint32_t i = 0; i < 4; ++i) a[i] = two_values(seed + i);
  for (uint32_t i = 0; i < kProducts * 2; ++i) b[i / 2][i % 2] = two_values(seed + 4 + i);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma unroll
    for (int i = 0; i < kProducts; ++i) ops::gpu::mma_bf16(c[i], a, b[i]);
  }
  float total = 0;
  for (int i = 0; i < kProducts; ++i) total += c[i][0] + c[i][1] + c[i][2] + c[i][3];
  if (total == 1e30f) *sink = total;  // never, but the compiler cannot know
}

}  // namespace

double start_matrix_loop(const ops::Context& context, int multiprocessors, int64_t rounds, float* sink) {
  const int blocks = multiprocessors * kBlocks;
  matrix_loop<<<blocks, kThreads, 0, ops::gpu::stream_of(context)>>>(rounds, sink);
  ops::gpu::check_launch("the loop of matrix products");
  return static_cast<double>(blocks) * (kThreads / 32) * kProducts * static_cast<double>(rounds) * kFlops;
}

}  // namespace perigee::bench::cuda
