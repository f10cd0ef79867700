#include "ops/moe_gemm/moe_gemm.h"

#include "base/check.h"

namespace perigee::ops {

using tensor::Device;
using tensor::DType;
using tensor::WeightLayout;

namespace {

bool layout_fits(Device device, WeightLayout layout) {
  switch (device) {
    case Device::kReference: return layout == WeightLayout::kRowMajorMxfp4 || layout == WeightLayout::kRowMajorBf16;
    case Device::kCpu: return layout == WeightLayout::kTiledMxfp4 || layout == WeightLayout::kTiledBf16;
    case Device::kCuda: return layout == WeightLayout::kFragmentMxfp4 || layout == WeightLayout::kFragmentBf16;
  }
  return false;
}

// What stands in host memory is checked.
void check_slots(const Tensor* source, const Tensor& offsets, int64_t count, int64_t slots, int64_t rows) {
  const int64_t slots = source != nullptr ? source->rows() : x.rows();
  if (source != nullptr) tensor::expect(*source, "source of moe_gemm", DType::kI32, {slots});
  if (context.device != Device::kCuda) check_slots(source, offsets, count, slots, x.rows());
  const DType real = real_dtype(context.device);
  const DType type = out.dtype == real ? real : activation_dtype(context.device);
  tensor::expect(out, "out of moe_gemm", type, {slots, w.n});
  switch (context.device) {
    case Device::kReference:
      return ref::moe_gemm(context, x, source, offsets, experts, out);
    case Device::kCpu:
      return cpu::moe_gemm(context, x, source, offsets, experts, out);
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::moe_gemm(context, x, source, offsets, experts, out);
      break;
  }
  CHECK(!"this device has no moe_gemm");
}

}  // namespace perigee::ops
