#include <cmath>

#include "ops/norm/norm.h"

namespace perigee::ops::ref {
namespace {

double weight_at(const Tensor& weight, int64_t i) {
  return weight.dtype == tensor::DType::kBF16 ? to_float(weight.as<bf16>()[i])
                                              : weight.as<float>()[i];
}

double inverse_rms(const double* x, int64_t n, double eps) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return 1 / std::sqrt(sum / static_cast<double>(n) + eps);
}

}  // namespace

void rms_norm(const Tensor& x, const Tensor& weight, double eps, const Tensor& out) {
  const int64_t n = x.dims[1];
  for (int64_t t = 0; t < x.rows(); ++t) {
    const double* in = x.row<double>(t);
    const double scale = inverse_rms(in, n, eps);
    for (int64_t i = 0; i < n; ++i) out.row<double>(t)[i] = in[i] * scale * weight_at(weight, i);
  }
}

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& out) {
  const int64_t n = x.dims[1];
  const auto count = static_cast<double>(n);
  for (int64_t t = 0; t < x.rows(); ++t) {
    const double* in = x.row<double>(t);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += in[i];
    const double mean = sum / count;
    double square = 0;
    for (int64_t i = 0; i < n; ++i) square += (in[i] - mean) * (in[i] - mean);
    const double scale = 1 / std::sqrt(square / count + eps);
    for (int64_t i = 0; i < n; ++i) {
      out.row<double>(t)[i] = (in[i] - mean) * scale * weight.as<float>()[i] + bias.as<float>()[i];
    }
  }
}

void gated_rms_norm(const Tensor& x, const Tensor& weight, const Tensor& gate, double eps,
                    const Tensor& out) {
  const int64_t heads = x.dims[1];
  const int64_t width = x.dims[2];
  for (int64_t t = 0; t < x.rows(); ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const double* in = x.row<double>(t) + h * width;
      const double* g = gate.row<double>(t) + h * width;
      const double scale = inverse_rms(in, width, eps);
      for (int64_t i = 0; i < width; ++i) {
        out.row<double>(t)[h * width + i] =
            in[i] * scale * weight.as<float>()[i] / (1 + std::exp(-g[i]));
      }
    }
  }
}

}  // namespace perigee::ops::ref
