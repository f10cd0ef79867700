#include <cmath>

#include "ops/act/act.h"

namespace perigee::ops::ref {
namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

template <class F>
void each(const Tensor& a, const Tensor& b, const Tensor& out, F f) {
  for (int64_t t = 0; t < a.rows(); ++t) {
    for (int64_t i = 0; i < a.dims[1]; ++i) {
      out.row<double>(t)[i] = f(a.row<double>(t)[i], b.row<double>(t)[i]);
    }
  }
}

}  // namespace

void glu(const Tensor& gate, const Tensor& up, const GluParams& params, const Tensor& out) {
  const double b1 = params.beta;
  const double b2 = params.linear_beta;
  if (params.kind == GluKind::kSilu) {
    each(gate, up, out, [](double g, double u) { return g * sigmoid(g) * u; });
  } else {
    each(gate, up, out, [=](double g, double u) {
      return b1 * std::tanh(g / b1) * sigmoid(g) * (b2 * std::tanh(u / b2));
    });
  }
}

void sigmoid_gate(const Tensor& x, const Tensor& gate, const Tensor& out) {
  each(x, gate, out, [](double v, double g) { return v * sigmoid(g); });
}

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  each(a, b, out, [](double x, double y) { return x + y; });
}

}  // namespace perigee::ops::ref
