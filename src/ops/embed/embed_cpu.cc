#include <cstring>

#include "ops/embed/embed.h"

namespace perigee::ops::cpu {

void embed(const Context& context, const Tensor& ids, const Tensor& table, const Tensor& out) {
  const size_t row_bytes = static_cast<size_t>(table.dims[1]) * sizeof(bf16);
  context.pool->parallel_for(ids.dims[0], [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::memcpy(out.row<bf16>(t), table.row<bf16>(ids.as<int32_t>()[t]), row_bytes);
    }
  });
}

}  // namespace perigee::ops::cpu
