// What    Seeded inputs of one KDA sequence and a runner that feeds them to the operation in any
//         cut.
// Owner   ops/kda tests.
// Threads Used from the test's thread.
// Errors  GoogleTest failures.
#pragma once

#include <string>
#include <vector>

#include "ops/kda/kda.h"
#include "ops/kda/kda_cases.h"
#include "ops/op_test.h"

namespace perigee::ops {

// T is bf16 for the CPU and double for the reference.
template <class T>
struct KdaData {
  std::vector<T> q, k, v, z, b;
};

struct KdaProblem {
  KdaCase shape;
  KdaParams params;
  int64_t rows = 0;
  KdaData<bf16> half;
  KdaData<double> wide;
  std::vector<float> a_log, dt_bias;
};

inline KdaProblem make_kda_problem(const KdaCase& shape, KdaDecay decay, int64_t rows,
                                   uint64_t seed) {
  using testing::random_float;
  using testing::random_half;
  KdaProblem p;
  p.shape = shape;
  p.rows = rows;
  p.params = {shape.heads, shape.key_dim, shape.value_dim, std::nullopt};
  if (decay != KdaDecay::kUnbounded) p.params.lower_bound = -5.0;
  const int64_t keys = shape.heads * shape.key_dim;
  p.half.q = random_half(seed, rows * keys, 1.0);
  p.half.k = random_half(seed + 1, rows * keys, 1.0);
  p.half.v = random_half(seed + 2, rows * shape.heads * shape.value_dim, 1.0);
  p.half.b = random_half(seed + 3, rows * shape.heads, 2.0);
  p.half.z = random_half(seed + 4, rows * keys, decay == KdaDecay::kUnbounded ? 12.0 : 2.0);
  for (int64_t i = 0; i < rows * keys; ++i) {
    const bool odd = i / keys % 2 == 1;
    const bool full = decay == KdaDecay::kFull || (decay == KdaDecay::kAlternating && odd);
    const bool none = decay == KdaDecay::kNone || (decay == KdaDecay::kAlternating && !odd);
    if (full) p.half.z[static_cast<size_t>(i)] = to_bf16(1e4f);
    if (none) p.half.z[static_cast<size_t>(i)] = to_bf16(-1e4f);
  }
  p.a_log = random_float(seed + 5, shape.heads + 2, 0.5);  // files may hold more entries than heads
  p.dt_bias = random_float(seed + 6, keys, 0.5);
  p.wide = {testing::widen(p.half.q), testing::widen(p.half.k), testing::widen(p.half.v),
            testing::widen(p.half.z), testing::widen(p.half.b)};
  return p;
}

// A sequence's results and what it carries on.
template <class R>
struct KdaOutcome {
  std::vector<R> out;
  std::vector<R> state;
  std::vector<std::byte> open;
};

template <class R>
bool operator==(const KdaOutcome<R>& a, const KdaOutcome<R>& b) {
  return testing::same_bits(a.out, b.out) && testing::same_bits(a.state, b.state) &&
         a.open == b.open;
}

template <class R>
KdaOutcome<R> kda_start(const Context& context, const KdaProblem& p) {
  return {{},
          std::vector<R>(static_cast<size_t>(p.shape.heads * p.shape.key_dim * p.shape.value_dim)),
          std::vector<std::byte>(static_cast<size_t>(kda_open_bytes(context.device, p.params)))};
}

// Feeds rows [begin, begin + rows) at their own positions; appends to o.out.
template <class T, class R>
void kda_feed(const Context& context, const KdaProblem& p, const KdaData<T>& data, int64_t begin,
              int64_t rows, KdaOutcome<R>& o) {
  using testing::Rows;
  std::vector<int64_t> pick = testing::iota(rows);
  for (int64_t& i : pick) i += begin;
  const int64_t heads = p.shape.heads;
  const int64_t keys = heads * p.shape.key_dim;
  const int64_t values = heads * p.shape.value_dim;
  Rows<T> q(data.q, keys, pick, 3);
  Rows<T> k(data.k, keys, pick, 1);
  Rows<T> v(data.v, values, pick, 0);
  Rows<T> z(data.z, keys, pick, 5);
  Rows<T> b(data.b, heads, pick, 2);
  Rows<R> out(rows, values, 4);
  const KdaSequence s = {0, rows, begin, o.state.data(), o.open.data()};
  kda(context, q.tensor().reshape({rows, heads, p.shape.key_dim}),
      k.tensor().reshape({rows, heads, p.shape.key_dim}),
      v.tensor().reshape({rows, heads, p.shape.value_dim}),
      z.tensor().reshape({rows, heads, p.shape.key_dim}), b.tensor(),
      testing::view(p.a_log, {static_cast<int64_t>(p.a_log.size())}),
      testing::view(p.dt_bias, {keys}), p.params, {&s, 1},
      out.tensor().reshape({rows, heads, p.shape.value_dim}));
  const std::vector<R> dense = out.dense();
  o.out.insert(o.out.end(), dense.begin(), dense.end());
}

inline KdaOutcome<float> kda_run(const Context& context, const KdaProblem& p,
                                 const std::vector<int64_t>& calls) {
  KdaOutcome<float> o = kda_start<float>(context, p);
  int64_t begin = 0;
  for (const int64_t rows : calls) {
    kda_feed(context, p, p.half, begin, rows, o);
    begin += rows;
  }
  return o;
}

inline KdaOutcome<double> kda_run_reference(const KdaProblem& p,
                                            const std::vector<int64_t>& calls) {
  KdaOutcome<double> o = kda_start<double>(testing::reference(), p);
  int64_t begin = 0;
  for (const int64_t rows : calls) {
    kda_feed(testing::reference(), p, p.wide, begin, rows, o);
    begin += rows;
  }
  return o;
}

// Calls of `size` rows each, the last one shorter.
inline std::vector<int64_t> equal_calls(int64_t rows, int64_t size) {
  std::vector<int64_t> calls;
  for (int64_t left = rows; left > 0; left -= calls.back()) calls.push_back(std::min(left, size));
  return calls;
}

// Calls of 1 to `longest` rows drawn from the seed.
inline std::vector<int64_t> drawn_calls(int64_t rows, int64_t longest, uint64_t seed) {
  std::vector<int64_t> calls;
  for (int64_t left = rows; left > 0; left -= calls.back()) {
    const uint64_t r = random_bits(seed, calls.size());
    calls.push_back(std::min(left, 1 + static_cast<int64_t>(r % static_cast<uint64_t>(longest))));
  }
  return calls;
}

}  // namespace perigee::ops
