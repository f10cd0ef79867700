#include "ops/gemm/gemm.h"

namespace perigee::ops::ref {

void gemm_batched(const Context& context, std::span<const GemmItem> items) {
  for (const GemmItem& item : items) {
    const auto* const w = static_cast<const bf16*>(item.w.data);
    const int64_t k = item.w.k;
    context.pool->parallel_for(item.w.n, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        for (int64_t t = 0; t < item.x.rows(); ++t) {
          const double* const x = item.x.row<double>(t);
          double sum = 0;
          for (int64_t c = 0; c < k; ++c) sum += x[c] * double{to_float(w[n * k + c])};
          item.out.row<double>(t)[n] = sum;
        }
      }
    });
  }
}

}  // namespace perigee::ops::ref
