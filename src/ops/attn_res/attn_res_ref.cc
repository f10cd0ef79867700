#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attn_res/attn_res.h"

namespace perigee::ops::ref {

void attn_res_mix(std::span<const Tensor> rows, const Tensor& query, double eps,
                  const Tensor& out) {
  const int64_t width = out.dims[1];
  for (int64_t t = 0; t < out.rows(); ++t) {
    std::vector<double> weight;
    for (const Tensor& row : rows) {
      const double* v = row.row<double>(t);
      double dot = 0;
      double square = 0;
      for (int64_t i = 0; i < width; ++i) {
        dot += v[i] * query.as<float>()[i];
        square += v[i] * v[i];
      }
      weight.push_back(dot / std::sqrt(square / static_cast<double>(width) + eps));
    }
    const double highest = *std::max_element(weight.begin(), weight.end());
    double sum = 0;
    for (double& w : weight) {
      w = std::exp(w - highest);
      sum += w;
    }
    for (int64_t i = 0; i < width; ++i) {
      double y = 0;
      for (size_t j = 0; j < rows.size(); ++j) y += weight[j] / sum * rows[j].row<double>(t)[i];
      out.row<double>(t)[i] = y;
    }
  }
}

}  // namespace perigee::ops::ref
