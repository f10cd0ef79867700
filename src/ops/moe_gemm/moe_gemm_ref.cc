#include <cmath>
#include <limits>

#include "num/formats.h"
#include "ops/moe_gemm/moe_gemm.h"

namespace perigee::ops::ref {
namespace {

double value_at(const Weight& w, int64_t n, int64_t k) {
  if (w.layout == tensor::WeightLayout::kRowMajorBf16) {
    return to_float(static_cast<const bf16*>(w.data)[n * w.k + k]);
  }
  const uint8_t byte = static_cast<const uint8_t*>(w.data)[n * (w.k / 2) + k / 2];
  const uint8_t scale = w.scales[n * (w.k / 32) + k / 32];
  if (scale == 255) return std::numeric_limits<double>::quiet_NaN();
  return std::ldexp(from_e2m1(k % 2 == 0 ? byte & 15 : byte >> 4), scale - 127);
}

}  // namespace

void moe_gemm(const Context& context, const Tensor& x, const Tensor* source, const Tensor& offsets,
              std::span<const Weight> experts, const Tensor& out) {
  context.pool->parallel_for(static_cast<int64_t>(experts.size()), [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      const Weight& w = experts[static_cast<size_t>(e)];
      for (int64_t i = offsets.as<int32_t>()[e]; i < offsets.as<int32_t>()[e + 1]; ++i) {
        const double* const row = x.row<double>(source != nullptr ? source->as<int32_t>()[i] : i);
        for (int64_t n = 0; n < w.n; ++n) {
          double sum = 0;
          for (int64_t k = 0; k < w.k; ++k) sum += row[k] * value_at(w, n, k);
          out.row<double>(i)[n] = sum;
        }
      }
    }
  });
}

}  // namespace perigee::ops::ref
