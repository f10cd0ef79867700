#include "ops/gpu_launch.h"
#include "ops/gpu_lanes.cuh"
#include "ops/moe_permute/moe_permute.h"

namespace perigee::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kExpertsMax = kPermuteGpuExpertsMax;  // counters of all warps fit into 48 KB
constexpr int kCombineThreads = 256;

struct Ids {
  const int32_t* data;
  int64_t stride;
  int active;
  int pairs;
  __device__ int at(int pair) const { return data[pair / active * stride + pair % active]; }
};

// One block. Pairs come 1,024 at a time in ascending order; a pair's place is its expert's next free slot plus the pairs of the
// same expert in lower warps and in lower lanes, so the order is that of a stable sort.
__global__ void __launch_bounds__(kThreads)
    permute_kernel(Ids ids, int experts, int32_t* offsets, int32_t* source, int32_t* place, int64_t place_stride) {
  extern __shared__ int32_t next[];  // [experts], then counters of pairs [warps][experts]
  auto* const counts = reinterpret_cast<uint8_t*>(next + experts);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  for (int e = threadIdx.x; e < experts; e += kThreads) next[e] = 0;
  __syncthreads();
  for (int p = threadIdx.x; p < ids.pairs; p += kThreads) atomicAdd(&next[ids.at(p)], 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    int sum = 0;
    for (int e = 0; e < experts; ++e) {
      const int count = next[e];
      next[e] = sum;
      offsets[e] = sum;
      sum += count;
    }
    offsets[experts] = sum;
  }
  for (int first = 0; first < ids.pairs; first += kThreads) {
    for (int i = threadIdx.x; i < kWarps * experts; i += kThreads) counts[i] = 0;
    __syncthreads();
    const int pair = first + static_cast<int>(threadIdx.x);
    const int id = pair < ids.pairs ? ids.at(pair) : -1;
    int before = 0;
    int all = 0;
    for (int other = 0; other < 32; ++other) {
      const bool same = gpu::lane_value(id, other) == id;
      before += same && other < lane;
      all += same;
    }
    if (id >= 0 && before == 0) counts[warp * experts + id] = static_cast<uint8_t>(all);
    __syncthreads();
    if (id >= 0) {
      int at = next[id] + before;
      for (int w = 0; w < warp; ++w) at += counts[w * experts + id];
      source[at] = pair / ids.active;
      place[pair / ids.active * place_stride + pair % ids.active] = at;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += kThreads) {
      for (int w = 0; w < kWarps; ++w) next[e] += counts[w * experts + e];
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const float* y, int64_t y_stride, const int32_t* place, int64_t place_stride, const float* weights,
                   int64_t weights_stride, int active, int64_t columns, bf16* out, int64_t out_stride) {
  const int64_t token = blockIdx.x;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kCombineThreads + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
  for (int a = 0; a < active; ++a) {
    sum = fmaf(weights[token * weights_stride + a], y[place[token * place_stride + a] * y_stride + column], sum);
  }
  out[token * out_stride + column] = to_bf16(sum);
}

}  // namespace

void moe_permute(const Context& context, const Tensor& ids, int64_t experts, const Tensor& offsets, const Tensor& source,
                 const Tensor& place) {
  CHECK_LE(experts, kExpertsMax);
  const Ids in = {ids.as<int32_t>(), ids.row_stride, static_cast<int>(ids.dims[1]), static_cast<int>(ids.size())};
  const auto bytes = static_cast<size_t>(experts) * (sizeof(int32_t) + kWarps);
  permute_kernel<<<1, kThreads, bytes, gpu::stream_of(context)>>>(in, static_cast<int>(experts), offsets.as<int32_t>(),
                                                                  source.as<int32_t>(), place.as<int32_t>(), place.row_stride);
  gpu::check_launch("moe_permute");
}

void moe_combine(const Context& context, const Tensor& y, const Tensor& place, const Tensor& weights, const Tensor& out) {
  if (out.size() == 0) return;
  const int64_t columns = out.dims[1];
  const dim3 grid(static_cast<unsigned>(out.rows()), static_cast<unsigned>((columns + kCombineThreads - 1) / kCombineThreads));
  combine_kernel<<<grid, kCombineThreads, 0, gpu::stream_of(context)>>>(
      y.as<float>(), y.row_stride, place.as<int32_t>(), place.row_stride, weights.as<float>(), weights.row_stride,
      static_cast<int>(place.dims[1]), columns, out.as<bf16>(), out.row_stride);
  gpu::check_launch("moe_combine");
}

}  // namespace perigee::ops::cuda
