#include "ops/attn_res/attn_res.h"

namespace perigee::ops {

void attn_res_mix(const Context& context, std::span<const Tensor> rows, const Tensor& query,
                  double eps, const Tensor& out) {
  const tensor::DType act = activation_dtype(context.device);
  CHECK_GE(rows.size(), 1u);
  CHECK_LE(rows.size(), static_cast<size_t>(kAttnResRowsMax));
  tensor::expect(out, "out", act, {-1, -1});
  tensor::expect(query, "query", tensor::DType::kF32, {out.dims[1]});
  CHECK_GE(out.dims[1], 1);
  CHECK_GE(eps, 0.0);
  for (const Tensor& row : rows) {
    tensor::expect(row, "row", act, {out.dims[0], out.dims[1]});
    CHECK(row.data != out.data || out.size() == 0);
  }
  switch (context.device) {
    case tensor::Device::kReference:
      return ref::attn_res_mix(rows, query, eps, out);
    case tensor::Device::kCpu:
      return cpu::attn_res_mix(context, rows, query, eps, out);
    case tensor::Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::attn_res_mix(context, rows, query, eps, out);
      break;
  }
  CHECK(false);
}

}  // namespace perigee::ops
