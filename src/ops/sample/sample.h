// Turns logits into log-probabilities, ranked alternatives and drawn tokens.
// Math     log_sum_exp:  out[t] = ln sum_i exp(x[t, i])
//          top_logprobs: the n largest x[t, i] - lse[t], by (logit descending, id ascending)
//          sample:       y_i = (x_i - max x) / temperature. Of the order (logit descending, id
//                        ascending) keep the first top_k, of these the shortest prefix whose
//                        probability reaches top_p, of these the prefix with exp(y_i) >= min_p.
//                        id = argmax of y_i + g_i over the kept, the lowest id of equal ones, with
//                        g_i = -ln(-ln(u_i)), u_i a hash of (seed, choice, position, i).
//                        Temperature 0: the largest logit, the lowest id of equal ones.
// Shapes   logits [T, O] real; lse [T] real; ids [T, n] i32; logprobs [T, n] real; params and
//          sampled one entry a row.
// Limits   O >= 1; 0 <= n <= O; temperature, top_k, min_p >= 0. top_k 0, top_p >= 1 and min_p 0
//          switch a filter off; the first token of the order is always kept.
// Units    Natural logarithms.
// Numerics NaN logits count as -inf, +inf as the largest FP32 number. A row without any logit above
//          -inf has lse -inf and gives id 0 with both log-probabilities -inf: the caller must end
//          that request. FP32 with fixed splits of 1024 columns (each its maximum and 16-lane sum,
//          joined in ascending order), probability masses of top_p in double; a row's result
//          depends on its logits and its parameters alone and is equal on every instruction set.
//          log_sum_exp is within 143 + 2 O / 1024 FP32 roundings of 1 (for |logits| below 64)
//          plus one of the result.
// Cost     4 T O bytes; about 25 T O flops for log_sum_exp, 60 for a draw without filters. With
//          filters only the candidates get noise; ranking them reads the row twice.
// Errors   CHECK on shapes and parameters.
// Threads  log_sum_exp over splits, the others over rows.
// Source   Gumbel-max trick (Gumbel 1954); filter order top-k, top-p, min-p as in common practice;
//          docs/numerics.md N8.
// Tests    sample_test.cc: hand numbers, bounds, ties, NaN and infinities, row independence;
//          sample_draw_test.cc: filters against the reference, frequencies, keys of the noise.
#pragma once

#include <algorithm>
#include <span>

#include "base/rng.h"
#include "ops/context.h"

namespace perigee::ops {

using tensor::Tensor;

struct SampleParams {
  double temperature = 1;
  double top_p = 1;
  double min_p = 0;
  int64_t top_k = 0;
  uint64_t seed = 0;
  int64_t position = 0;  // of the token to draw
  int64_t choice = 0;    // which of a request's parallel answers
};

struct Sampled {
  int32_t id = 0;
  double logprob = 0;            // of the model: no temperature, no filter
  double processed_logprob = 0;  // of the distribution drawn from; 0 at temperature 0
};

void log_sum_exp(const Context& context, const Tensor& logits, const Tensor& out);
void top_logprobs(const Context& context, const Tensor& logits, const Tensor& lse, int64_t n,
                  const Tensor& ids, const Tensor& logprobs);
void sample(const Context& context, const Tensor& logits, std::span<const SampleParams> params,
            std::span<Sampled> sampled);

// Key of a row's noise.
constexpr uint64_t sample_key(const SampleParams& p) {
  return mix64(mix64(mix64(p.seed) ^ static_cast<uint64_t>(p.choice)) ^
               static_cast<uint64_t>(p.position));
}

// 1 - u_i: uniform in (0, 1). Small values, which make the largest noise, keep a resolution of
// 2^-31.
constexpr float sample_uniform(uint64_t key, int32_t id) {
  const auto bits =
      static_cast<float>(static_cast<int32_t>(random_bits(key, static_cast<uint64_t>(id)) >> 33));
  return std::min(std::max(bits * 0x1p-31f, 0x1p-32f), 1.0f - 0x1p-24f);
}

namespace ref {
void log_sum_exp(const Tensor& logits, const Tensor& out);
void top_logprobs(const Tensor& logits, const Tensor& lse, int64_t n, const Tensor& ids,
                  const Tensor& logprobs);
void sample(const Tensor& logits, std::span<const SampleParams> params, std::span<Sampled> sampled);
}  // namespace ref
namespace cpu {
void log_sum_exp(const Context& context, const Tensor& logits, const Tensor& out);
void top_logprobs(const Context& context, const Tensor& logits, const Tensor& lse, int64_t n,
                  const Tensor& ids, const Tensor& logprobs);
void sample(const Context& context, const Tensor& logits, std::span<const SampleParams> params,
            std::span<Sampled> sampled);
}  // namespace cpu

}  // namespace perigee::ops
