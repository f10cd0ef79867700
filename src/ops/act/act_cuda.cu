#include "ops/act/act.h"
#include "ops/gpu_glu.cuh"
#include "ops/gpu_launch.h"

namespace perigee::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Calls f(row, column) for every element.
template <class F>
__global__ void __launch_bounds__(kThreads) each_kernel(int64_t columns, F f) {
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (column < columns) f(static_cast<int64_t>(blockIdx.x), column);
}

template <class F>
void each(const Context& context, const Tensor& out, const char* name, F f) {
  if (out.size() == 0) return;
  const dim3 grid(static_cast<unsigned>(out.rows()), static_cast<unsigned>((out.dims[1] + kThreads - 1) / kThreads));
  each_kernel<<<grid, kThreads, 0, gpu::stream_of(context)>>>(out.dims[1], f);
  gpu::check_launch(name);
}

template <class T>
struct Matrix {
  T* data;
  int64_t stride;
  __device__ T& at(int64_t row, int64_t column) const { return data[row * stride + column]; }
};

template <class T>
Matrix<T> matrix(const Tensor& t) {
  return {t.as<T>(), t.row_stride};
}

struct Glu {
  Matrix<float> gate, up;
  Matrix<bf16> out;
  gpu::Situ situ;
  bool silu;
  __device__ void operator()(int64_t t, int64_t i) const {
    const float g = gate.at(t, i);
    const float u = up.at(t, i);
    out.at(t, i) = to_bf16(silu ? gpu::silu(g) * u : gpu::situ(g, u, situ));
  }
};

struct SigmoidGate {
  Matrix<bf16> x, gate, out;
  __device__ void operator()(int64_t t, int64_t i) const {
    out.at(t, i) = to_bf16(to_float(x.at(t, i)) * gpu::fast_sigmoid(to_float(gate.at(t, i))));
  }
};

struct Add {
  Matrix<bf16> a, b, out;
  __device__ void operator()(int64_t t, int64_t i) const {
    out.at(t, i) = to_bf16(to_float(a.at(t, i)) + to_float(b.at(t, i)));
  }
};

}  // namespace

void glu(const Context& context, const Tensor& gate, const Tensor& up, const GluParams& params, const Tensor& out) {
  each(context, out, "glu",
       Glu{matrix<float>(gate), matrix<float>(up), matrix<bf16>(out), gpu::situ_of(params.beta, params.linear_beta),
           params.kind == GluKind::kSilu});
}

void sigmoid_gate(const Context& context, const Tensor& x, const Tensor& gate, const Tensor& out) {
  each(context, out, "sigmoid_gate", SigmoidGate{matrix<bf16>(x), matrix<bf16>(gate), matrix<bf16>(out)});
}

void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& out) {
  each(context, out, "add", Add{matrix<bf16>(a), matrix<bf16>(b), matrix<bf16>(out)});
}

}  // namespace perigee::ops::cuda
