#include "ops/gpu_launch.h"
#include "ops/gpu_rows.cuh"
#include "ops/norm/norm.h"

namespace perigee::ops::cuda {
namespace {

// A weight of either type.
struct NormWeight {
  const bf16* half;
  const float* full;
  __device__ float at(int64_t i) const { return half != nullptr ? to_float(half[i]) : full[i]; }
};

NormWeight weight_of(const Tensor& weight) {
  if (weight.dtype == tensor::DType::kBF16) return {weight.as<bf16>(), nullptr};
  return {nullptr, weight.as<float>()};
}

struct Rows {
  bf16* data;
  int64_t stride;
};

Rows rows_of(const Tensor& t) { return {t.as<bf16>(), t.row_stride}; }

__global__ void __launch_bounds__(gpu::kRowThreads) rms_norm_kernel(Rows x, NormWeight weight, int64_t n, float eps, Rows out) {
  extern __shared__ float sums[];
  const bf16* const in = x.data + blockIdx.x * x.stride;
  bf16* const to = out.data + blockIdx.x * out.stride;
  const float square = gpu::block_row_sum(n, sums, [&](int64_t i, float chain) {
    const float v = to_float(in[i]);
    return fmaf(v, v, chain);
  });
  const float scale = 1.0f / sqrtf(square / static_cast<float>(n) + eps);
  for (int64_t i = threadIdx.x; i < n; i += gpu::kRowThreads) to[i] = to_bf16(to_float(in[i]) * scale * weight.at(i));
}

__global__ void __launch_bounds__(gpu::kRowThreads)
    layer_norm_kernel(Rows x, const float* weight, const float* bias, int64_t n, float eps, Rows out) {
  extern __shared__ float sums[];
  const bf16* const in = x.data + blockIdx.x * x.stride;
  bf16* const to = out.data + blockIdx.x * out.stride;
  const float sum = gpu::block_row_sum(n, sums, [&](int64_t i, float chain) { return chain + to_float(in[i]); });
  const float mean = sum / static_cast<float>(n);
  const float square = gpu::block_row_sum(n, sums, [&](int64_t i, float chain) {
    const float v = to_float(in[i]) - mean;
    return fmaf(v, v, chain);
  });
  const float scale = 1.0f / sqrtf(square / static_cast<float>(n) + eps);
  for (int64_t i = threadIdx.x; i < n; i += gpu::kRowThreads) {
    to[i] = to_bf16((to_float(in[i]) - mean) * scale * weight[i] + bias[i]);
  }
}

// A warp for each head of a row.
__global__ void __launch_bounds__(gpu::kRowThreads)
    gated_rms_norm_kernel(const float* x, int64_t x_stride, const float* weight, Rows gate, int64_t rows, int64_t heads,
                          int64_t width, float eps, Rows out) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (gpu::kRowThreads / gpu::kLanes) + threadIdx.x / gpu::kLanes;
  if (item >= rows * heads) return;
  const int64_t row = item / heads;
  const int64_t at = item % heads * width;
  const float* const in = x + row * x_stride + at;
  const bf16* const gates = gate.data + row * gate.stride + at;
  bf16* const to = out.data + row * out.stride + at;
  const float square = gpu::warp_row_sum(width, [&](int64_t i, float chain) { return fmaf(in[i], in[i], chain); });
  const float scale = 1.0f / sqrtf(square / static_cast<float>(width) + eps);
  for (int64_t i = threadIdx.x % gpu::kLanes; i < width; i += gpu::kLanes) {
    to[i] = to_bf16(in[i] * scale * weight[i] * gpu::sigmoid(to_float(gates[i])));
  }
}

unsigned shared_bytes(int64_t n) { return static_cast<unsigned>(gpu::row_blocks(n) * sizeof(float)); }

}  // namespace

void rms_norm(const Context& context, const Tensor& x, const Tensor& weight, double eps, const Tensor& out) {
  if (x.rows() == 0) return;
  const int64_t n = x.dims[1];
  rms_norm_kernel<<<static_cast<unsigned>(x.rows()), gpu::kRowThreads, shared_bytes(n), gpu::stream_of(context)>>>(
      rows_of(x), weight_of(weight), n, static_cast<float>(eps), rows_of(out));
  gpu::check_launch("rms_norm");
}

void layer_norm(const Context& context, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& out) {
  if (x.rows() == 0) return;
  const int64_t n = x.dims[1];
  layer_norm_kernel<<<static_cast<unsigned>(x.rows()), gpu::kRowThreads, shared_bytes(n), gpu::stream_of(context)>>>(
      rows_of(x), weight.as<float>(), bias.as<float>(), n, static_cast<float>(eps), rows_of(out));
  gpu::check_launch("layer_norm");
}

void gated_rms_norm(const Context& context, const Tensor& x, const Tensor& weight, const Tensor& gate, double eps,
                    const Tensor& out) {
  const int64_t items = x.rows() * x.dims[1];
  if (items == 0) return;
  constexpr int64_t kWarps = gpu::kRowThreads / gpu::kLanes;
  gated_rms_norm_kernel<<<static_cast<unsigned>((items + kWarps - 1) / kWarps), gpu::kRowThreads, 0, gpu::stream_of(context)>>>(
      x.as<float>(), x.row_stride, weight.as<float>(), rows_of(gate), x.rows(), x.dims[1], x.dims[2], static_cast<float>(eps),
      rows_of(out));
  gpu::check_launch("gated_rms_norm");
}

}  // namespace perigee::ops::cuda
