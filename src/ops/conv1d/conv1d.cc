#include "ops/conv1d/conv1d.h"

#include <vector>

namespace perigee::ops {
namespace {

void check(const Context& context, const Tensor& x, const Tensor& weight, std::span<const ConvSequence> sequences,
           const Tensor& out) {
  const tensor::DType act = activation_dtype(context.device);
  tensor::expect(x, "x", act, {-1, -1});
  tensor::expect(weight, "weight", tensor::DType::kF32, {x.dims[1], -1});
  tensor::expect(out, "out", act, {x.dims[0], x.dims[1]});
  CHECK_GE(weight.dims[1], 1);
  CHECK_LE(weight.dims[1], kConvWidthMax);
  CHECK_EQ(weight.row_stride, weight.dims[1]);
  CHECK(x.data != out.data || x.size() == 0);
  for (const ConvSequence& s : sequences) {
    CHECK(s.row_begin >= 0 && s.rows >= 0 && s.row_begin + s.rows <= x.dims[0]);
    CHECK_GE(s.position, 0);
    CHECK((s.window != nullptr && s.open != nullptr) || weight.dims[1] == 1);
  }
}

}  // namespace

void causal_conv1d(const Context& context, const Tensor& x, const Tensor& weight, const tensor::Parts& parts,
                   const tensor::StatePlace& window, const tensor::SlotPlace& open, const Tensor& out) {
  std::vector<ConvSequence> sequences;
  for (const tensor::Part& p : parts.host) {
    const bool past = weight.dims[1] > 1;
    sequences.push_back({p.row_begin, p.rows, p.position, past ? window.of(p) : nullptr, past ? open.of(p) : nullptr});
  }
  if (context.device != tensor::Device::kCuda) return causal_conv1d(context, x, weight, sequences, out);
  check(context, x, weight, sequences, out);
  CHECK(kCudaBuilt && parts.device != nullptr);
  if constexpr (kCudaBuilt) cuda::causal_conv1d(context, x, weight, parts, window, open, out);
}

void causal_conv1d(const Context& context, const Tensor& x, const Tensor& weight,
                   std::span<const ConvSequence> sequences, const Tensor& out) {
  check(context, x, weight, sequences, out);
  switch (context.device) {
    case tensor::Device::kReference:
      return ref::causal_conv1d(x, weight, sequences, out);
    case tensor::Device::kCpu:
      return cpu::causal_conv1d(context, x, weight, sequences, out);
    case tensor::Device::kCuda:
      break;
  }
  CHECK(false);
}

}  // namespace perigee::ops
