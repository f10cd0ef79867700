#include "ops/attn_res/attn_res.h"
#include "ops/gpu_launch.h"
#include "ops/gpu_rows.cuh"

namespace perigee::ops::cuda {
namespace {

// The row tensors of one call, passed by value.
struct RowList {
  const bf16* data[kAttnResRowsMax];
  int64_t stride[kAttnResRowsMax];
  int count;
};

// A block a token: scores one row after the other, then the softmax, then the mix, each in row order.
__global__ void __launch_bounds__(gpu::kRowThreads)
    attn_res_kernel(const __grid_constant__ RowList rows, const float* query, int64_t width, float eps, bf16* out,
                    int64_t out_stride) {
  extern __shared__ float sums[];
  __shared__ float weights[kAttnResRowsMax];
  const int64_t token = blockIdx.x;
  for (int j = 0; j < rows.count; ++j) {
    const bf16* const row = rows.data[j] + token * rows.stride[j];
    const float dot = gpu::block_row_sum(
        width, sums, [&](int64_t i, float chain) { return fmaf(to_float(row[i]), query[i], chain); });
    const float square = gpu::block_row_sum(width, sums, [&](int64_t i, float chain) {
      const float v = to_float(row[i]);
      return fmaf(v, v, chain);
    });
    if (threadIdx.x == 0) weights[j] = dot / sqrtf(square / static_cast<float>(width) + eps);
  }
  __syncthreads();
  float highest = weights[0];
  for (int j = 1; j < rows.count; ++j) highest = fmaxf(highest, weights[j]);
  __syncthreads();
  for (int j = threadIdx.x; j < rows.count; j += gpu::kRowThreads) weights[j] = __expf(weights[j] - highest);
  __syncthreads();
  float sum = 0.0f;
  for (int j = 0; j < rows.count; ++j) sum = sum + weights[j];
  bf16* const to = out + token * out_stride;
  for (int64_t i = threadIdx.x; i < width; i += gpu::kRowThreads) {
    float mix = 0.0f;
    for (int j = 0; j < rows.count; ++j) mix = fmaf(weights[j] / sum, to_float(rows.data[j][token * rows.stride[j] + i]), mix);
    to[i] = to_bf16(mix);
  }
}

}  // namespace

void attn_res_mix(const Context& context, std::span<const Tensor> rows, const Tensor& query, double eps, const Tensor& out) {
  if (out.rows() == 0) return;
  RowList list = {};
  list.count = static_cast<int>(rows.size());
  for (size_t j = 0; j < rows.size(); ++j) {
    list.data[j] = rows[j].as<bf16>();
    list.stride[j] = rows[j].row_stride;
  }
  const int64_t width = out.dims[1];
  const auto shared = static_cast<unsigned>(gpu::row_blocks(width) * sizeof(float));
  attn_res_kernel<<<static_cast<unsigned>(out.rows()), gpu::kRowThreads, shared, gpu::stream_of(context)>>>(
      list, query.as<float>(), width, static_cast<float>(eps), out.as<bf16>(), out.row_stride);
  gpu::check_launch("attn_res_mix");
}

}  // namespace perigee::ops::cuda
