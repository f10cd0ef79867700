#include "ops/gpu_launch.h"
#include "ops/gpu_rows.cuh"
#include "ops/moe_route/moe_route.h"

namespace perigee::ops::cuda {
namespace {

constexpr int kWarps = 4;  // tokens of a block

struct Best {
  float key;
  int id;
};

// The better of two: the larger key, of equal ones the lower id.
__device__ Best better(Best a, Best b) { return b.key > a.key || (b.key == a.key && b.id < a.id) ? b : a; }

__device__ Best warp_best(Best mine) {
  for (int mask = 16; mask > 0; mask /= 2) {
    mine = better(mine, {gpu::lane_xor(mine.key, mask), gpu::lane_xor(mine.id, mask)});
  }
  return mine;
}

// A warp a token. A chosen expert's id becomes negative in the list, which takes it out.
__global__ void __launch_bounds__(kWarps * 32)
    route_kernel(const float* logits, int64_t logits_stride, const float* bias, int64_t tokens, int experts, int active,
                 bool renormalize, float scale, int32_t* ids, int64_t ids_stride, float* weights, int64_t weights_stride) {
  extern __shared__ float shared[];
  float* const scores = shared + threadIdx.x / 32 * (2 * experts + active);
  float* const keys = scores + experts;
  float* const chosen = keys + experts;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= tokens) return;
  const int lane = threadIdx.x % 32;
  const float lowest = -__int_as_float(0x7f800000);
  for (int e = lane; e < experts; e += 32) {
    scores[e] = gpu::sigmoid(logits[token * logits_stride + e]);
    const float key = scores[e] + bias[e];
    keys[e] = key == key ? key : lowest;
  }
  const float taken = __int_as_float(0x7fc00000);  // NaN is better than nothing
  for (int a = 0; a < active; ++a) {
    Best best = {lowest, experts};
    for (int e = lane; e < experts; e += 32) {
      if (keys[e] == keys[e]) best = better(best, {keys[e], e});
    }
    best = warp_best(best);
    if (lane == best.id % 32) {
      chosen[a] = scores[best.id];
      keys[best.id] = taken;
      ids[token * ids_stride + a] = best.id;
    }
  }
  gpu::warp_barrier();
  float sum = 0;
  for (int a = 0; a < active; ++a) sum = sum + chosen[a];
  const float divisor = renormalize ? sum + 1e-20f : 1.0f;
  for (int a = lane; a < active; a += 32) weights[token * weights_stride + a] = chosen[a] / divisor * scale;
}

}  // namespace

void moe_route(const Context& context, const Tensor& logits, const Tensor& bias, const RouteParams& params, const Tensor& ids,
               const Tensor& weights) {
  if (logits.rows() == 0) return;
  const auto experts = static_cast<int>(logits.dims[1]);
  const auto active = static_cast<int>(params.active);
  const size_t bytes = static_cast<size_t>(kWarps) * static_cast<size_t>(2 * experts + active) * sizeof(float);
  CHECK_LE(bytes, size_t{48} << 10);
  const auto blocks = static_cast<unsigned>((logits.rows() + kWarps - 1) / kWarps);
  route_kernel<<<blocks, kWarps * 32, bytes, gpu::stream_of(context)>>>(
      logits.as<float>(), logits.row_stride, bias.as<float>(), logits.rows(), experts, active, params.renormalize,
      static_cast<float>(params.scale), ids.as<int32_t>(), ids.row_stride, weights.as<float>(), weights.row_stride);
  gpu::check_launch("moe_route");
}

}  // namespace perigee::ops::cuda
