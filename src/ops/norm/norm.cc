#include "ops/norm/norm.h"

namespace perigee::ops {
namespace {

using tensor::Device;
using tensor::DType;
using tensor::expect;

}  // namespace

void rms_norm(const Context& context, const Tensor& x, const Tensor& weight, double eps,
              const Tensor& out) {
  const DType act = activation_dtype(context.device);
  expect(x, "x", act, {-1, -1});
  expect(out, "out", act, {x.dims[0], x.dims[1]});
  expect(weight, "weight", weight.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32, {x.dims[1]});
  CHECK_GE(x.dims[1], 1);
  CHECK_GE(eps, 0.0);
  switch (context.device) {
    case Device::kReference:
      return ref::rms_norm(x, weight, eps, out);
    case Device::kCpu:
      return cpu::rms_norm(context, x, weight, eps, out);
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::rms_norm(context, x, weight, eps, out);
      break;
  }
  CHECK(false);
}

void layer_norm(const Context& context, const Tensor& x, const Tensor& weight, const Tensor& bias,
                double eps, const Tensor& out) {
  const DType act = activation_dtype(context.device);
  expect(x, "x", act, {-1, -1});
  expect(out, "out", act, {x.dims[0], x.dims[1]});
  expect(weight, "weight", DType::kF32, {x.dims[1]});
  expect(bias, "bias", DType::kF32, {x.dims[1]});
  CHECK_GE(x.dims[1], 1);
  CHECK_GE(eps, 0.0);
  switch (context.device) {
    case Device::kReference:
      return ref::layer_norm(x, weight, bias, eps, out);
    case Device::kCpu:
      return cpu::layer_norm(context, x, weight, bias, eps, out);
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::layer_norm(context, x, weight, bias, eps, out);
      break;
  }
  CHECK(false);
}

void gated_rms_norm(const Context& context, const Tensor& x, const Tensor& weight,
                    const Tensor& gate, double eps, const Tensor& out) {
  const DType act = activation_dtype(context.device);
  expect(x, "x", real_dtype(context.device), {-1, -1, -1});
  expect(weight, "weight", DType::kF32, {x.dims[2]});
  expect(gate, "gate", act, {x.dims[0], x.dims[1] * x.dims[2]});
  expect(out, "out", act, {x.dims[0], x.dims[1] * x.dims[2]});
  CHECK_GE(x.dims[2], 1);
  CHECK_GE(eps, 0.0);
  switch (context.device) {
    case Device::kReference:
      return ref::gated_rms_norm(x, weight, gate, eps, out);
    case Device::kCpu:
      return cpu::gated_rms_norm(context, x, weight, gate, eps, out);
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::gated_rms_norm(context, x, weight, gate, eps, out);
      break;
  }
  CHECK(false);
}

}  // namespace perigee::ops
