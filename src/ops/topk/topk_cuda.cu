#include "ops/gpu_launch.h"
#include "ops/gpu_records.cuh"
#include "ops/topk/topk.h"

namespace perigee::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBuckets = 256;

// A number that orders as the score does: larger is better, NaN is 0, -0 equals 0.
__device__ uint32_t key_of(bf16 score) {
  uint32_t u = score.bits;
  if ((u & 0x7fffu) > 0x7f80u) return 0;
  if (u == 0x8000u) u = 0;
  return u >= 0x8000u ? 0xffffu - u : u + 0x8000u;
}

__device__ int lane_int(int x, int mask) { return float_bits(gpu::lane_float(float_from_bits(static_cast<uint32_t>(x)), mask)); }

// Exclusive sum over the block's threads of two small counts at once (upper and lower 16 bits); `sums` holds a word a warp.
__device__ uint32_t block_scan(uint32_t mine, uint32_t* sums, uint32_t& total) {
  const int lane = threadIdx.x % 32;
  uint32_t before = 0;
  uint32_t all = mine;
  for (int step = 1; step < 32; step *= 2) {
    const auto other = static_cast<uint32_t>(lane_int(static_cast<int>(all), step));
    if (lane & step) before += other;
    all += other;
  }
  __syncthreads();
  if (lane == 0) sums[threadIdx.x / 32] = all;
  __syncthreads();
  uint32_t below = 0;
  total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < static_cast<int>(threadIdx.x / 32)) below += sums[w];
    total += sums[w];
  }
  return below + before;
}

struct Choice {
  uint32_t key;   // of the last one chosen
  int64_t equal;  // how many with this key are chosen, the first ones
};

// The bucket that holds the `wanted`-th best, counted from the top; leaves in `wanted` how many of it are needed.
__device__ int find_bucket(const int* counts, int64_t& wanted) {
  int b = kBuckets - 1;
  for (; b > 0 && counts[b] < wanted; --b) wanted -= counts[b];
  return b;
}

// Two halvings by 256: first the upper byte of the key, then the lower one.
__device__ Choice choose(const bf16* scores, int64_t length, int64_t k, int* counts, Choice* found) {
  uint32_t upper = 0;
  int64_t wanted = k;
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = threadIdx.x; i < kBuckets; i += kThreads) counts[i] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < length; i += kThreads) {
      const uint32_t key = key_of(scores[i]);
      if (pass == 0) {
        atomicAdd(&counts[key >> 8], 1);
      } else if (key >> 8 == upper) {
        atomicAdd(&counts[key & 0xffu], 1);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const int bucket = find_bucket(counts, wanted);
      found->key = pass == 0 ? static_cast<uint32_t>(bucket) : upper << 8 | static_cast<uint32_t>(bucket);
      found->equal = wanted;
    }
    __syncthreads();
    upper = found->key;
    wanted = found->equal;
    __syncthreads();
  }
  return {upper, wanted};
}

// A block a row.
__global__ void __launch_bounds__(kThreads)
    topk_kernel(const bf16* scores, int64_t scores_stride, const tensor::Part* parts, const int32_t* part_of_row,
                int64_t first_row, int64_t k, int32_t* out, int64_t out_stride, int32_t* counts_out) {
  __shared__ int counts[kBuckets];
  __shared__ uint32_t sums[kWarps];
  __shared__ Choice found;
  const int64_t row = first_row + blockIdx.x;
  const gpu::Place place = gpu::place_of(parts, part_of_row, row);
  if (place.part == nullptr) return;
  const int64_t length = place.position + 1;
  const int64_t count = min(length, k);
  int32_t* const to = out + row * out_stride;
  if (threadIdx.x == 0) counts_out[row] = static_cast<int32_t>(count);
  if (length <= k) {
    for (int64_t i = threadIdx.x; i < k; i += kThreads) to[i] = i < length ? static_cast<int32_t>(i) : -1;
    return;
  }
  const bf16* const from = scores + blockIdx.x * scores_stride;
  const Choice last = choose(from, length, k, counts, &found);
  int64_t taken = 0;
  int64_t equals = 0;
  for (int64_t first = 0; first < length; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const uint32_t key = i < length ? key_of(from[i]) : 0;
    const bool better = i < length && key > last.key;
    const bool equal = i < length && key == last.key;
    uint32_t total;
    const uint32_t before = block_scan((better ? 1u : 0u) << 16 | (equal ? 1u : 0u), sums, total);
    const int64_t equals_before = equals + (before & 0xffffu);
    const bool chosen = better || (equal && equals_before < last.equal);
    const int64_t at = taken + (before >> 16) + min(equals_before, last.equal);
    if (chosen) to[at] = static_cast<int32_t>(i);
    taken += total >> 16;
    equals += total & 0xffffu;
  }
}

}  // namespace

void topk(const Context& context, const Tensor& scores, const tensor::Parts& parts, int64_t first_row, int64_t k,
          const Tensor& out, const Tensor& counts) {
  if (scores.rows() == 0) return;
  topk_kernel<<<static_cast<unsigned>(scores.rows()), kThreads, 0, gpu::stream_of(context)>>>(
      scores.as<bf16>(), scores.row_stride, parts.device, parts.part_of_row, first_row, k, out.as<int32_t>(), out.row_stride,
      counts.as<int32_t>());
  gpu::check_launch("topk");
}

}  // namespace perigee::ops::cuda
