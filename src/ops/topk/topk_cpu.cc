#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "ops/dynamic_items.h"
#include "ops/topk/topk.h"
#include "ops/topk/topk_simd.h"

namespace perigee::ops::cpu {

void topk(const Context& context, const Tensor& scores, const Tensor& lengths, int64_t k,
          const Tensor& out, const Tensor& counts) {
  const bf16* data = scores.as<bf16>();
  const int32_t* length_of = lengths.as<int32_t>();
  int32_t* count_of = counts.as<int32_t>();
  with_isa(context.isa, [&]<Isa isa>() {
    for_each_item(context.pool, scores.rows(), [&](int64_t t) {
      thread_local std::vector<int16_t> keys;
      int32_t* to = out.row<int32_t>(t);
      const int64_t length = length_of[t];
      const int64_t count = std::min(length, k);
      if (length > k) {
        keys.resize(std::max(keys.size(), static_cast<size_t>(length + 64)));
        TopkKernels<isa>::select(data + t * scores.row_stride, length, k, keys.data(), to);
      } else {
        std::iota(to, to + count, 0);
        std::fill(to + count, to + k, -1);
      }
      count_of[t] = static_cast<int32_t>(count);
    });
  });
}

}  // namespace perigee::ops::cpu
