#include "ops/embed/embed.h"

namespace perigee::ops {

void embed(const Context& context, const Tensor& ids, const Tensor& table, const Tensor& out) {
  tensor::expect(ids, "ids", tensor::DType::kI32, {-1});
  tensor::expect(table, "table", tensor::DType::kBF16, {-1, -1});
  tensor::expect(out, "out", activation_dtype(context.device), {ids.dims[0], table.dims[1]});
  for (int64_t t = 0; t < ids.dims[0] && context.device != tensor::Device::kCuda; ++t) {
    CHECK_GE(ids.as<int32_t>()[t], 0);
    CHECK_LT(ids.as<int32_t>()[t], table.dims[0]);
  }
  switch (context.device) {
    case tensor::Device::kReference:
      return ref::embed(ids, table, out);
    case tensor::Device::kCpu:
      return cpu::embed(context, ids, table, out);
    case tensor::Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::embed(context, ids, table, out);
      break;
  }
  CHECK(false);
}

}  // namespace perigee::ops
