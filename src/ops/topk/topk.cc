#include "ops/topk/topk.h"

namespace perigee::ops {

void topk(const Context& context, const Tensor& scores, const Tensor& lengths, int64_t k,
          const Tensor& out, const Tensor& counts) {
  CHECK_GE(k, 1);
  const int64_t rows = scores.rows();
  tensor::expect(scores, "scores", activation_dtype(context.device), {-1, -1});
  tensor::expect(lengths, "lengths", tensor::DType::kI32, {rows});
  tensor::expect(out, "out", tensor::DType::kI32, {rows, k});
  tensor::expect(counts, "counts", tensor::DType::kI32, {rows});
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t length = lengths.as<int32_t>()[t];
    CHECK(length >= 0 && length <= scores.dims[1]);
  }
  switch (context.device) {
    case tensor::Device::kReference:
      return ref::topk(context, scores, lengths, k, out, counts);
    case tensor::Device::kCpu:
      return cpu::topk(context, scores, lengths, k, out, counts);
    case tensor::Device::kCuda:
      break;
  }
  CHECK(false);
}

}  // namespace perigee::ops
