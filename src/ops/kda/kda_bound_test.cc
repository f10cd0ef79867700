// The chunk form against the recurrence, inside a bound that a running error analysis derives for
// each output.
//
// Within a chunk every FP32 operation is repeated in double with an error term beside it (Running
// below), starting from the recurrence's exact state. Between chunks the errors of the state only
// add: a step is (I - beta kn kn^T) diag(alpha), whose norm is at most 1, applied to each column.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/kda/kda_problem.h"

namespace perigee::ops {
namespace {

using testing::kRound32;

// A value and how far its FP32 counterpart may be from it.
struct Running {
  double v = 0;
  double e = 0;
};

Running rounded(double v, double e) {
  return {v, e + kRound32 * (std::abs(v) + e) + 0x1p-126};
}
double product_error(Running a, Running b) {
  return std::abs(a.v) * b.e + std::abs(b.v) * a.e + a.e * b.e;
}
Running operator*(Running a, Running b) {
  return rounded(a.v * b.v, product_error(a, b));
}
Running operator+(Running a, Running b) {
  return rounded(a.v + b.v, a.e + b.e);
}
Running operator-(Running a, Running b) {
  return rounded(a.v - b.v, a.e + b.e);
}
Running fused(Running a, Running b, Running c) {
  return rounded(a.v * b.v + c.v, product_error(a, b) + c.e);
}

// Sixteen lanes of n/16 FMAs, then a tree of four additions.
Running dot(const Running* a, const Running* b, int64_t n) {
  double sum = 0;
  double error = 0;
  double magnitude = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += a[i].v * b[i].v;
    error += product_error(a[i], b[i]);
    magnitude += std::abs(a[i].v * b[i].v) + product_error(a[i], b[i]);
  }
  return {sum, error + magnitude * (std::ceil(static_cast<double>(n) / 16) + 4) * kRound32 * 1.001};
}

// Errors of num/simd.h in roundings: two ulps are four (simd_test.cc).
constexpr double kExp = 3;
constexpr double kSigmoid = 6;
constexpr double kLog = 4;

struct Row {
  std::vector<Running> k, q, alpha, v;
  Running beta;
};

Running log_decay(const KdaProblem& p, int64_t head, double z, double bias) {
  const double rate = std::exp(static_cast<double>(p.a_log[static_cast<size_t>(head)]));
  const Running x = rounded(z + bias, 0);
  const Running scaled = rounded(rate * x.v, rate * x.e + (kExp * rate) * kRound32 * std::abs(x.v));
  if (p.params.lower_bound) {
    const double s = 1 / (1 + std::exp(-scaled.v));
    // The slope s (1 - s) grows by at most e^error inside the error of the argument.
    const double moved = s * (1 - s) * std::expm1(scaled.e);
    return rounded(*p.params.lower_bound * s, 5 * (moved + kSigmoid * kRound32 * s));
  }
  const double soft = std::max(x.v, 0.0) + std::log1p(std::exp(-std::abs(x.v)));
  const double tail = std::log1p(std::exp(-std::abs(x.v)));
  // 1 + e^-|x| is rounded before its logarithm: an absolute error of one rounding, plus exp's and
  // log's own.
  const double error = x.e + (1 + kExp + kLog * std::max(tail, 1e-3) + soft) * kRound32;
  return rounded(-rate * soft, rate * error + kExp * kRound32 * rate * soft);
}

Row make_row(const KdaProblem& p, int64_t t, int64_t head) {
  const int64_t width = p.shape.key_dim;
  const size_t key = static_cast<size_t>((t * p.shape.heads + head) * width);
  Row row;
  const auto normalised = [&](const std::vector<double>& x, double scale) {
    double square = 0;
    for (int64_t i = 0; i < width; ++i)
      square += x[key + static_cast<size_t>(i)] * x[key + static_cast<size_t>(i)];
    const double length = std::sqrt(square + 1e-6);
    // Half of the squares' relative error, then the root, the division, two products and the two
    // constants.
    const double relative = (std::ceil(static_cast<double>(width) / 16) / 2 + 10) * kRound32;
    std::vector<Running> out;
    for (int64_t i = 0; i < width; ++i) {
      const double v = x[key + static_cast<size_t>(i)] / length * scale;
      out.push_back({v, std::abs(v) * relative});
    }
    return out;
  };
  row.k = normalised(p.wide.k, 1);
  row.q = normalised(p.wide.q, 1 / std::sqrt(static_cast<double>(width)));
  for (int64_t i = 0; i < width; ++i) {
    const double bias = p.dt_bias[static_cast<size_t>(head * width + i)];
    const Running g = log_decay(p, head, p.wide.z[key + static_cast<size_t>(i)], bias);
    const double alpha = std::exp(g.v);
    row.alpha.push_back({alpha, alpha * (std::expm1(g.e) + kExp * kRound32) + 0x1p-126});
  }
  for (int64_t j = 0; j < p.shape.value_dim; ++j) {
    const size_t at = static_cast<size_t>((t * p.shape.heads + head) * p.shape.value_dim + j);
    row.v.push_back({p.wide.v[at], 0});
  }
  const double s = 1 / (1 + std::exp(-p.wide.b[static_cast<size_t>(t * p.shape.heads + head)]));
  row.beta = {s, s * kSigmoid * kRound32};
  return row;
}

// One head; walks the chunks, keeps the exact state and each column's accumulated state error.
class Analysis {
 public:
  Analysis(const KdaProblem& p, int64_t head)
      : p_(p),
        head_(head),
        state_(static_cast<size_t>(p.shape.key_dim * p.shape.value_dim)),
        drift_(static_cast<size_t>(p.shape.value_dim)) {}

  // bound[t * V + j] of every row.
  std::vector<double> run() {
    std::vector<double> bound;
    for (int64_t begin = 0; begin < p_.rows; begin += kKdaChunk) {
      const int64_t count = std::min(kKdaChunk, p_.rows - begin);
      prepare(begin, count);
      std::vector<std::vector<Running>> o(static_cast<size_t>(count));
      for (int64_t j = 0; j < p_.shape.value_dim; ++j) column(j, count, o);
      for (const auto& row : o) {
        for (int64_t j = 0; j < p_.shape.value_dim; ++j) {
          // |qn| is at most K^-1/2.
          const double carried =
              drift_[static_cast<size_t>(j)] / std::sqrt(static_cast<double>(p_.shape.key_dim));
          bound.push_back(row[static_cast<size_t>(j)].e + carried * 1.01);
        }
      }
      if (count == kKdaChunk) close();
    }
    return bound;
  }

 private:
  void prepare(int64_t begin, int64_t count) {
    const int64_t width = p_.shape.key_dim;
    rows_.clear();
    decayed_.clear();
    a_.assign(16, std::vector<Running>(16));
    m_ = a_;
    k_factor_.clear();
    q_factor_.clear();
    decay_.assign(static_cast<size_t>(width), {1, 0});
    for (int64_t r = 0; r < count; ++r) {
      rows_.push_back(make_row(p_, begin + r, head_));
      const Row& row = rows_.back();
      for (auto& d : decayed_) multiply(d, row.alpha);
      multiply(decay_, row.alpha);
      decayed_.push_back(row.k);
      for (size_t c = 0; c < decayed_.size(); ++c) {
        a_[static_cast<size_t>(r)][c] = dot(row.k.data(), decayed_[c].data(), width);
        m_[static_cast<size_t>(r)][c] = dot(row.q.data(), decayed_[c].data(), width);
      }
      k_factor_.push_back(row.k);
      q_factor_.push_back(row.q);
      multiply(k_factor_.back(), decay_);
      multiply(q_factor_.back(), decay_);
    }
    u_.assign(static_cast<size_t>(count), std::vector<Running>());
  }

  static void multiply(std::vector<Running>& x, const std::vector<Running>& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] * y[i];
  }

  // u and o of one column from the exact state.
  void column(int64_t j, int64_t count, std::vector<std::vector<Running>>& o) {
    for (int64_t r = 0; r < count; ++r) {
      const auto at = static_cast<size_t>(r);
      Running found;
      Running seen;
      for (int64_t i = 0; i < p_.shape.key_dim; ++i) {
        const Running s = {state_[static_cast<size_t>(i * p_.shape.value_dim + j)], 0};
        found = fused(k_factor_[at][static_cast<size_t>(i)], s, found);
        seen = fused(q_factor_[at][static_cast<size_t>(i)], s, seen);
      }
      Running earlier;
      Running mixed;
      for (size_t c = 0; c < at; ++c) {
        earlier = fused(a_[at][c], u_[c][static_cast<size_t>(j)], earlier);
        mixed = fused(m_[at][c], u_[c][static_cast<size_t>(j)], mixed);
      }
      const Row& row = rows_[at];
      const Running x = row.beta * (row.v[static_cast<size_t>(j)] - found);
      u_[at].push_back(fused({-row.beta.v, row.beta.e}, earlier, x));
      o[at].push_back(seen + fused(m_[at][at], u_[at].back(), mixed));
    }
  }

  void close() {
    for (int64_t j = 0; j < p_.shape.value_dim; ++j) {
      double square = 0;
      for (int64_t i = 0; i < p_.shape.key_dim; ++i) {
        const size_t at = static_cast<size_t>(i * p_.shape.value_dim + j);
        Running s = decay_[static_cast<size_t>(i)] * Running{state_[at], 0};
        for (size_t c = 0; c < 16; ++c) {
          s = fused(decayed_[c][static_cast<size_t>(i)], u_[c][static_cast<size_t>(j)], s);
        }
        state_[at] = s.v;
        square += s.e * s.e;
      }
      drift_[static_cast<size_t>(j)] += std::sqrt(square);
    }
  }

  const KdaProblem& p_;
  int64_t head_;
  std::vector<double> state_;
  std::vector<double> drift_;  // norm of the FP32 state's error, per column
  std::vector<Row> rows_;
  std::vector<std::vector<Running>> decayed_, a_, m_, k_factor_, q_factor_, u_;
  std::vector<Running> decay_;
};

TEST(KdaBound, ChunksFollowTheRecurrence) {
  const int64_t rows = 90;
  for (const KdaCase& shape : kKdaCases) {
    for (const KdaDecay decay : kKdaDecays) {
      const KdaProblem p = make_kda_problem(shape, decay, rows, 7);
      const std::vector<double> want = kda_run_reference(p, {rows}).out;
      std::vector<double> bound(want.size());
      double largest = 0;
      double typical = 0;
      for (int64_t head = 0; head < shape.heads; ++head) {
        const std::vector<double> own = Analysis(p, head).run();
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t j = 0; j < shape.value_dim; ++j) {
            const auto at = static_cast<size_t>((t * shape.heads + head) * shape.value_dim + j);
            bound[at] = own[static_cast<size_t>(t * shape.value_dim + j)];
            largest = std::max(largest, bound[at]);
            typical = std::max(typical, std::abs(want[at]));
          }
        }
      }
      // The bound must be worth something: far below the outputs themselves. (With one channel
      // |A_rc| is 1 and sixteen rows of absolute errors grow by 2^16, so that shape only tests that
      // nothing exceeds it.)
      if (shape.key_dim > 1) {
        EXPECT_LT(largest, 1e-3 * typical)
            << "K " << shape.key_dim << ", decay " << static_cast<int>(decay);
      }
      const KdaOutcome<float> got = kda_run(testing::cpu(), p, {rows});
      testing::expect_within<float>(got.out, want, [&](size_t i) { return bound[i]; });
    }
  }
}

}  // namespace
}  // namespace perigee::ops
