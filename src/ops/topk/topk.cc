#include "ops/topk/topk.h"

#include <algorithm>
#include <vector>

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

void topk(const Context& context, const Tensor& scores, const tensor::Parts& parts,
          int64_t first_row, int64_t k, const tensor::PagePlace& pages, const Tensor& out, const Tensor& counts,
          const Tensor& places) {
  const int64_t rows = scores.rows();
  CHECK_GE(k, 1);
  CHECK(first_row >= 0 && first_row + rows <= out.rows());
  if (context.device == tensor::Device::kCuda) {
    tensor::expect(scores, "scores", tensor::DType::kBF16, {-1, -1});
    tensor::expect(out, "out", tensor::DType::kI32, {-1, k});
    tensor::expect(counts, "counts", tensor::DType::kI32, {out.rows()});
    CHECK(kCudaBuilt && parts.device != nullptr);
    if (places.data != nullptr) tensor::expect(places, "places", tensor::DType::kI32, {out.rows(), k});
    if constexpr (kCudaBuilt) cuda::topk(context, scores, parts, first_row, k, pages, out, counts, places);
    return;
  }
  for (const tensor::Part& p : parts.host) {
    const int64_t begin = std::max(p.row_begin, first_row);
    const int64_t end = std::min(p.row_begin + p.rows, first_row + rows);
    if (begin >= end) continue;
    std::vector<int32_t> lengths;
    for (int64_t t = begin; t < end; ++t) lengths.push_back(static_cast<int32_t>(p.position + t - p.row_begin + 1));
    topk(context, scores.slice(begin - first_row, end - begin), tensor::view(lengths.data(), {end - begin}), k,
         out.slice(begin, end - begin), counts.slice(begin, end - begin));
  }
}

}  // namespace perigee::ops
