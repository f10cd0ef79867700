#include "ops/act/act.h"

namespace perigee::ops {
namespace {

using tensor::Device;

void expect_three(const Context& context, const Tensor& a, const char* a_name, const Tensor& b,
                  const char* b_name, const Tensor& out, tensor::DType in) {
  const tensor::DType act = activation_dtype(context.device);
  tensor::expect(a, a_name, in, {-1, -1});
  tensor::expect(b, b_name, in, {a.dims[0], a.dims[1]});
  tensor::expect(out, "out", act, {a.dims[0], a.dims[1]});
}

}  // namespace

void glu(const Context& context, const Tensor& gate, const Tensor& up, const GluParams& params,
         const Tensor& out) {
  const bool gpu = context.device == Device::kCuda;
  expect_three(context, gate, "gate", up, "up", out,
               gpu ? real_dtype(context.device) : activation_dtype(context.device));
  CHECK(params.kind == GluKind::kSilu || (params.beta > 0 && params.linear_beta > 0));
  switch (context.device) {
    case Device::kReference:
      return ref::glu(gate, up, params, out);
    case Device::kCpu:
      return cpu::glu(context, gate, up, params, out);
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::glu(context, gate, up, params, out);
      break;
  }
  CHECK(false);
}

void sigmoid_gate(const Context& context, const Tensor& x, const Tensor& gate, const Tensor& out) {
  expect_three(context, x, "x", gate, "gate", out, activation_dtype(context.device));
  switch (context.device) {
    case Device::kReference:
      return ref::sigmoid_gate(x, gate, out);
    case Device::kCpu:
      return cpu::sigmoid_gate(context, x, gate, out);
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::sigmoid_gate(context, x, gate, out);
      break;
  }
  CHECK(false);
}

void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& out) {
  expect_three(context, a, "a", b, "b", out, activation_dtype(context.device));
  switch (context.device) {
    case Device::kReference:
      return ref::add(a, b, out);
    case Device::kCpu:
      return cpu::add(context, a, b, out);
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::add(context, a, b, out);
      break;
  }
  CHECK(false);
}

}  // namespace perigee::ops
