#include "ops/embed/embed.h"

namespace perigee::ops::ref {

void embed(const Tensor& ids, const Tensor& table, const Tensor& out) {
  for (int64_t t = 0; t < ids.dims[0]; ++t) {
    const bf16* row = table.row<bf16>(ids.as<int32_t>()[t]);
    for (int64_t i = 0; i < table.dims[1]; ++i) out.row<double>(t)[i] = to_float(row[i]);
  }
}

}  // namespace perigee::ops::ref
