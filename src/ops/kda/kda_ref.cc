#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/kda/kda.h"

namespace perigee::ops::ref {
namespace {

// What the recurrence needs of one row, as kept in `open`: k, alpha [K], v [V], beta.
struct Row {
  double* k;
  double* alpha;
  double* v;
  double* beta;
};

Row open_row(const KdaParams& p, void* open, int64_t head, int64_t index) {
  const int64_t size = 2 * p.key_dim + p.value_dim + 1;
  double* base = static_cast<double*>(open) + (head * kKdaChunk + index) * size;
  return {base, base + p.key_dim, base + 2 * p.key_dim, base + 2 * p.key_dim + p.value_dim};
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

double softplus(double x) {
  return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

void normalise(const double* x, int64_t n, double scale, double* out) {
  double square = 0;
  for (int64_t i = 0; i < n; ++i) square += x[i] * x[i];
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] / std::sqrt(square + 1e-6) * scale;
}

void fill_row(const KdaInputs& in, const KdaParams& p, int64_t t, int64_t head, const Row& row) {
  const int64_t width = p.key_dim;
  normalise(in.k.row<double>(t) + head * width, width, 1.0, row.k);
  const double rate = std::exp(static_cast<double>(in.a_log.as<float>()[head]));
  for (int64_t i = 0; i < width; ++i) {
    const double x =
        in.z.row<double>(t)[head * width + i] + in.dt_bias.as<float>()[head * width + i];
    const double g = p.lower_bound ? *p.lower_bound * sigmoid(rate * x) : -rate * softplus(x);
    row.alpha[i] = std::exp(g);
  }
  std::copy_n(in.v.row<double>(t) + head * p.value_dim, p.value_dim, row.v);
  *row.beta = sigmoid(in.b.row<double>(t)[head]);
}

// S <- diag(alpha) S, then the delta rule.
void step(const KdaParams& p, const Row& row, std::vector<double>& state) {
  for (int64_t j = 0; j < p.value_dim; ++j) {
    double found = 0;
    for (int64_t i = 0; i < p.key_dim; ++i) {
      double& s = state[static_cast<size_t>(i * p.value_dim + j)];
      s *= row.alpha[i];
      found += s * row.k[i];
    }
    const double u = *row.beta * (row.v[j] - found);
    for (int64_t i = 0; i < p.key_dim; ++i)
      state[static_cast<size_t>(i * p.value_dim + j)] += row.k[i] * u;
  }
}

void run_head(const KdaInputs& in, const KdaParams& p, const KdaSequence& s, int64_t head,
              const Tensor& out) {
  double* stored = static_cast<double*>(s.state) + head * p.key_dim * p.value_dim;
  std::vector<double> state(stored, stored + p.key_dim * p.value_dim);
  std::vector<double> q(static_cast<size_t>(p.key_dim));
  for (int64_t r = 0; r < s.position % kKdaChunk; ++r) step(p, open_row(p, s.open, head, r), state);
  for (int64_t i = 0; i < s.rows; ++i) {
    const int64_t t = s.row_begin + i;
    const int64_t index = (s.position + i) % kKdaChunk;
    const Row row = open_row(p, s.open, head, index);
    fill_row(in, p, t, head, row);
    step(p, row, state);
    normalise(in.q.row<double>(t) + head * p.key_dim, p.key_dim,
              1 / std::sqrt(static_cast<double>(p.key_dim)), q.data());
    for (int64_t j = 0; j < p.value_dim; ++j) {
      double o = 0;
      for (int64_t c = 0; c < p.key_dim; ++c) {
        o += q[static_cast<size_t>(c)] * state[static_cast<size_t>(c * p.value_dim + j)];
      }
      out.row<double>(t)[head * p.value_dim + j] = o;
    }
    if (index == kKdaChunk - 1) std::copy(state.begin(), state.end(), stored);
  }
}

}  // namespace

int64_t kda_open_bytes(const KdaParams& p) {
  return p.heads * kKdaChunk * (2 * p.key_dim + p.value_dim + 1) *
         static_cast<int64_t>(sizeof(double));
}

void kda(const KdaInputs& in, const KdaParams& params, std::span<const KdaSequence> sequences,
         const Tensor& out) {
  for (const KdaSequence& s : sequences) {
    for (int64_t head = 0; head < params.heads; ++head) run_head(in, params, s, head, out);
  }
}

}  // namespace perigee::ops::ref
