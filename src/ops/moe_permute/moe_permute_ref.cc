#include "ops/moe_permute/moe_permute.h"

namespace perigee::ops::ref {

void moe_combine(const Context&, const Tensor& y, const Tensor& place, const Tensor& weights,
                 const Tensor& out) {
  for (int64_t t = 0; t < place.rows(); ++t) {
    for (int64_t z = 0; z < y.dims[1]; ++z) {
      double sum = 0;
      for (int64_t a = 0; a < place.dims[1]; ++a) {
        sum += weights.row<double>(t)[a] * y.row<double>(place.row<int32_t>(t)[a])[z];
      }
      out.row<double>(t)[z] = sum;
    }
  }
}

}  // namespace perigee::ops::ref
