#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/mla/mla.h"
#include "ops/page_io/page_io.h"

namespace perigee::ops::ref {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// One head over n decoded records of `width` values.
void attend(const double* q, const std::vector<double>& records, int64_t n, int64_t width,
            int64_t c, double scale, double* out, double* lse) {
  std::vector<double> p(static_cast<size_t>(n));
  double largest = -kInf;
  for (int64_t i = 0; i < n; ++i) {
    double dot = 0;
    for (int64_t d = 0; d < width; ++d) dot += q[d] * records[static_cast<size_t>(i * width + d)];
    p[static_cast<size_t>(i)] = dot * scale;
    largest = std::max(largest, dot * scale);
  }
  const double base = largest == -kInf ? 0 : largest;
  double sum = 0;
  for (double& x : p) {
    x = std::exp(x - base);
    sum += x;
  }
  for (int64_t d = 0; d < c; ++d) {
    double value = 0;
    for (int64_t i = 0; i < n; ++i) {
      value += p[static_cast<size_t>(i)] * records[static_cast<size_t>(i * width + d)];
    }
    out[d] = sum == 0 ? 0 : value / sum;
  }
  *lse = sum == 0 ? -kInf : base + std::log(sum);
}

}  // namespace

void mla(const Context&, const Tensor& q, LatentFormat format, int64_t latent_width, double scale,
         std::span<const MlaSequence> sequences, const Selection* selection, const Tensor& out,
         const Tensor& lse) {
  const int64_t heads = q.dims[1];
  const int64_t width = q.dims[2];
  for (const MlaSequence& s : sequences) {
    for (int64_t i = 0; i < s.rows; ++i) {
      const int64_t t = s.row_begin + i;
      std::vector<int32_t> list(static_cast<size_t>(s.position + i + 1));
      std::iota(list.begin(), list.end(), 0);
      if (selection != nullptr) {
        const int32_t* row = selection->positions.row<int32_t>(t);
        list.assign(row, row + selection->counts.as<int32_t>()[t]);
      }
      const int64_t n = static_cast<int64_t>(list.size());
      std::vector<double> records(static_cast<size_t>(n * width));
      for (int64_t k = 0; k < n; ++k) {
        read_latent(format, s.latents, list[static_cast<size_t>(k)], latent_width,
                    width - latent_width, records.data() + k * width);
      }
      for (int64_t h = 0; h < heads; ++h) {
        attend(q.row<double>(t) + h * width, records, n, width, latent_width, scale,
               out.row<double>(t) + h * latent_width, lse.row<double>(t) + h);
      }
    }
  }
}

}  // namespace perigee::ops::ref
