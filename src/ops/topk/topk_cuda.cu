#include "ops/gpu_launch.h"
#include "ops/gpu_records.cuh"
#include "ops/topk/topk.h"

namespace perigee::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kLowBits = 4;                      // of a key, found last
constexpr int kBuckets = 1 << (16 - kLowBits);   // of the upper bits: scores of one sign and size spread over many
constexpr int kVector = 8;                       // scores that a thread reads at once

// A number that orders as the score does: larger is better, NaN is 0, -0 equals 0.
__device__ uint32_t key_of(bf16 score) {
  uint32_t u = score.bits;
  if ((u & 0x7fffu) > 0x7f80u) return 0;
  if (u == 0x8000u) u = 0;
  return u >= 0x8000u ? 0xffffu - u : u + 0x8000u;
}

// Exclusive sum over the block's threads; `sums` holds a word a warp.
__device__ uint32_t block_scan(uint32_t mine, uint32_t* sums, uint32_t& total) {
  const int lane = threadIdx.x % 32;
  uint32_t before = 0;
  uint32_t all = mine;
  for (int step = 1; step < 32; step *= 2) {
    const auto other = gpu::lane_xor(all, step);
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

// The keys of scores [at, at + 8), 0 beyond the row; at is a multiple of 8.
__device__ void keys_of(const bf16* scores, int64_t at, int64_t length, uint32_t (&keys)[kVector]) {
  if (at + kVector <= length && reinterpret_cast<uintptr_t>(scores) % sizeof(uint4) == 0) {
    const uint4 x = *reinterpret_cast<const uint4*>(scores + at);
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < kVector; ++i) keys[i] = key_of(bf16{static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16))});
    return;
  }
  for (int i = 0; i < kVector; ++i) keys[i] = at + i < length ? key_of(scores[at + i]) : 0u;
}

// Calls f(key) for every score of the row, by the threads of the block.
template <class F>
__device__ void each_key(const bf16* scores, int64_t length, F&& f) {
  for (int64_t at = threadIdx.x * kVector; at < length; at += kThreads * kVector) {
    uint32_t keys[kVector];
    keys_of(scores, at, length, keys);
    for (int i = 0; i < kVector; ++i) {
      if (at + i < length) f(keys[i]);
    }
  }
}

struct Choice {
  uint32_t key;    // of the last one chosen
  uint32_t equal;  // how many with this key are chosen, the first ones
};

// The bucket that holds the `wanted`-th best, counted from the top, and how many of it are needed.
template <int kCounts>
__device__ Choice find_bucket(const uint32_t* counts, uint32_t wanted, uint32_t* sums, Choice* found) {
  constexpr int kEach = (kCounts + kThreads - 1) / kThreads;
  const int top = kCounts - 1 - static_cast<int>(threadIdx.x) * kEach;
  uint32_t mine = 0;
  for (int i = 0; i < kEach && top - i >= 0; ++i) mine += counts[top - i];
  uint32_t total;
  uint32_t better = block_scan(mine, sums, total);
  if (better < wanted && wanted <= better + mine) {
    int b = top;
    for (; better + counts[b] < wanted; --b) better += counts[b];
    *found = {static_cast<uint32_t>(b), wanted - better};
  }
  __syncthreads();
  return *found;
}

// First the upper bits of the last key, then the lower ones.
__device__ Choice choose(const bf16* scores, int64_t length, uint32_t k, uint32_t* counts, uint32_t* sums, Choice* found) {
  for (int i = threadIdx.x; i < kBuckets; i += kThreads) counts[i] = 0;
  __syncthreads();
  each_key(scores, length, [&](uint32_t key) { atomicAdd(&counts[key >> kLowBits], 1u); });
  __syncthreads();
  const Choice upper = find_bucket<kBuckets>(counts, k, sums, found);
  __syncthreads();
  if (threadIdx.x < 1 << kLowBits) counts[threadIdx.x] = 0;
  __syncthreads();
  each_key(scores, length, [&](uint32_t key) {
    if (key >> kLowBits == upper.key) atomicAdd(&counts[key & ((1u << kLowBits) - 1)], 1u);
  });
  __syncthreads();
  const Choice lower = find_bucket<1 << kLowBits>(counts, upper.equal, sums, found);
  return {upper.key << kLowBits | lower.key, lower.equal};
}

// Where selected positions go.
struct Out {
  int32_t* positions;
  int64_t stride;
  int32_t* places;  // null: not wanted
  int64_t places_stride;
  int32_t* counts;
  tensor::PagePlace pages;

  __device__ void put(const tensor::Part& part, int64_t row, int64_t i, int64_t position) const {
    positions[row * stride + i] = static_cast<int32_t>(position);
    if (places != nullptr) places[row * places_stride + i] = position < 0 ? -1 : pages.place(part, position);
  }
};

// A block a row.
__global__ void __launch_bounds__(kThreads)
    topk_kernel(const bf16* scores, int64_t scores_stride, const tensor::Part* parts, const int32_t* part_of_row,
                int64_t first_row, int64_t k, const __grid_constant__ Out out) {
  __shared__ uint32_t counts[kBuckets];
  __shared__ uint32_t sums[kWarps];
  __shared__ Choice found;
  const int64_t row = first_row + blockIdx.x;
  const gpu::Place place = gpu::place_of(parts, part_of_row, row);
  if (place.part == nullptr) return;
  const int64_t length = place.position + 1;
  const int64_t count = min(length, k);
  if (threadIdx.x == 0) out.counts[row] = static_cast<int32_t>(count);
  if (length <= k) {
    for (int64_t i = threadIdx.x; i < k; i += kThreads) out.put(*place.part, row, i, i < length ? i : -1);
    return;
  }
  const bf16* const from = scores + blockIdx.x * scores_stride;
  const Choice last = choose(from, length, static_cast<uint32_t>(k), counts, sums, &found);
  uint32_t taken = 0;
  uint32_t equals = 0;
  for (int64_t first = 0; first < length && taken + min(equals, last.equal) < k; first += kThreads * kVector) {
    const int64_t at = first + threadIdx.x * kVector;
    uint32_t keys[kVector];
    keys_of(from, at, length, keys);
    uint32_t mine = 0;  // better ones in the upper half, equal ones in the lower
    for (int i = 0; i < kVector; ++i) {
      if (at + i < length) mine += (keys[i] > last.key ? 1u << 16 : 0u) + (keys[i] == last.key ? 1u : 0u);
    }
    uint32_t total;
    const uint32_t before = block_scan(mine, sums, total);
    uint32_t better_before = taken + (before >> 16);
    uint32_t equals_before = equals + (before & 0xffffu);
    for (int i = 0; mine != 0 && i < kVector && at + i < length; ++i) {
      const bool equal = keys[i] == last.key;
      const bool chosen = keys[i] > last.key || (equal && equals_before < last.equal);
      if (chosen) out.put(*place.part, row, better_before + min(equals_before, last.equal), at + i);
      better_before += keys[i] > last.key;
      equals_before += equal;
    }
    taken += total >> 16;
    equals += total & 0xffffu;
  }
}

}  // namespace

void topk(const Context& context, const Tensor& scores, const tensor::Parts& parts, int64_t first_row, int64_t k,
          const tensor::PagePlace& pages, const Tensor& out, const Tensor& counts, const Tensor& places) {
  if (scores.rows() == 0) return;
  topk_kernel<<<static_cast<unsigned>(scores.rows()), kThreads, 0, gpu::stream_of(context)>>>(
      scores.as<bf16>(), scores.row_stride, parts.device, parts.part_of_row, first_row, k,
      {out.as<int32_t>(), out.row_stride, places.data != nullptr ? places.as<int32_t>() : nullptr, places.row_stride,
       counts.as<int32_t>(), pages});
  gpu::check_launch("topk");
}

}  // namespace perigee::ops::cuda
