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
  const int32_t* const at = offsets.as<int32_t>();
  CHECK(at[0] == 0 && at[count] == slots);
  for (int64_t e = 0; e < count; ++e) CHECK_LE(at[e], at[e + 1]);
  for (int64_t i = 0; source != nullptr && i < slots; ++i) {
    const int32_t row = source->as<int32_t>()[i];
    CHECK(row >= 0 && row < rows);
  }
}

}  // namespace

void moe_gemm(const Context& context, const Tensor& x, const Tensor* source, const Tensor& offsets,
              std::span<const Weight> experts, const Tensor& out) {
  CHECK_GT(experts.size(), size_t{0});
  const Weight& w = experts[0];
  const int64_t count = static_cast<int64_t>(experts.size());
  tensor::expect(x, "x of moe_gemm", activation_dtype(context.device), {-1, w.k});
  tensor::expect(offsets, "offsets of moe_gemm", DType::kI32, {count + 1});
  for (const Weight& e : experts) {
    CHECK(e.n == w.n && e.k == w.k && e.layout == w.layout);
  }
  CHECK(layout_fits(context.device, w.layout));
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
