#include "ops/moe_route/moe_route.h"

#include "base/check.h"

namespace perigee::ops {

using tensor::Device;
using tensor::DType;

void moe_route(const Context& context, const Tensor& logits, const Tensor& bias,
               const RouteParams& params, const Tensor& ids, const Tensor& weights) {
  const DType real = real_dtype(context.device);
  tensor::expect(logits, "logits of moe_route", real, {-1, -1});
  const int64_t experts = logits.dims[1];
  CHECK(params.active >= 1 && params.active <= experts);
  tensor::expect(bias, "bias of moe_route", DType::kF32, {experts});
  tensor::expect(ids, "ids of moe_route", DType::kI32, {logits.rows(), params.active});
  tensor::expect(weights, "weights of moe_route", real, {logits.rows(), params.active});
  switch (context.device) {
    case Device::kReference:
      return ref::moe_route(context, logits, bias, params, ids, weights);
    case Device::kCpu:
      return cpu::moe_route(context, logits, bias, params, ids, weights);
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::moe_route(context, logits, bias, params, ids, weights);
      break;
  }
  CHECK(!"this device has no moe_route");
}

}  // namespace perigee::ops
