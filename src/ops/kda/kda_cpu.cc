#include <cmath>
#include <vector>

#include "ops/kda/kda.h"
#include "ops/kda/kda_simd.h"

namespace perigee::ops::cpu {
namespace {

int64_t pad(int64_t n) {
  return (n + 15) / 16 * 16;
}

int64_t open_floats(const KdaParams& p) {
  return kKdaChunk * (2 * pad(p.key_dim) + pad(p.value_dim));
}

// Work space of one thread, cut up for kda_head.
std::vector<float> make_work(const KdaParams& p, KdaHead& h) {
  h.key_dim = p.key_dim;
  h.key_pad = pad(p.key_dim);
  h.value_dim = p.value_dim;
  h.value_pad = pad(p.value_dim);
  h.bounded = p.lower_bound.has_value();
  h.lower_bound = static_cast<float>(p.lower_bound.value_or(0));
  h.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.key_dim)));
  const int64_t floats =
      (3 * kKdaChunk + 1) * h.key_pad + 2 * kKdaChunk * h.value_pad + 16 * h.key_dim;
  std::vector<float> work(static_cast<size_t>(floats));
  float* at = work.data();
  const auto take = [&](int64_t n) {
    float* piece = at;
    at += n;
    return piece;
  };
  h.decayed = take(kKdaChunk * h.key_pad);
  h.factors = take(2 * kKdaChunk * h.key_pad);
  h.decay = take(h.key_pad);
  h.products = take(2 * kKdaChunk * h.value_pad);
  h.block = take(16 * h.key_dim);
  return work;
}

float* state_of(const KdaParams& p, const KdaSequence& s, int64_t head) {
  return static_cast<float*>(s.state) + head * p.key_dim * p.value_dim;
}

void place(const KdaInputs& in, const KdaSequence& s, int64_t head, const Tensor& out, KdaHead& h) {
  const int64_t key = head * h.key_dim;
  const int64_t value = head * h.value_dim;
  h.q = in.q.row<bf16>(s.row_begin) + key;
  h.k = in.k.row<bf16>(s.row_begin) + key;
  h.v = in.v.row<bf16>(s.row_begin) + value;
  h.z = in.z.row<bf16>(s.row_begin) + key;
  h.b = in.b.row<bf16>(s.row_begin) + head;
  h.q_stride = in.q.row_stride;
  h.k_stride = in.k.row_stride;
  h.v_stride = in.v.row_stride;
  h.z_stride = in.z.row_stride;
  h.b_stride = in.b.row_stride;
  h.dt_bias = in.dt_bias.as<float>() + key;
  h.a_log = in.a_log.as<float>()[head];
  h.rows = s.rows;
  h.position = s.position;
  h.open_k = static_cast<float*>(s.open) + head * kKdaChunk * (2 * h.key_pad + h.value_pad);
  h.open_alpha = h.open_k + kKdaChunk * h.key_pad;
  h.open_u = h.open_alpha + kKdaChunk * h.key_pad;
  h.out = out.row<float>(s.row_begin) + value;
  h.out_stride = out.row_stride;
}

}  // namespace

int64_t kda_open_bytes(const KdaParams& p) {
  return p.heads * open_floats(p) * static_cast<int64_t>(sizeof(float));
}

void kda(const Context& context, const KdaInputs& in, const KdaParams& params,
         std::span<const KdaSequence> sequences, const Tensor& out) {
  const auto count = static_cast<int64_t>(sequences.size());
  // Heads outside, so that every thread gets its share of a long sequence among short ones.
  context.pool->parallel_for(params.heads * count, [&](int64_t begin, int64_t end) {
    KdaHead h = {};
    const std::vector<float> work = make_work(params, h);
    for (int64_t i = begin; i < end; ++i) {
      const auto state = [&](int64_t item) {
        return state_of(params, sequences[static_cast<size_t>(item % count)], item / count);
      };
      place(in, sequences[static_cast<size_t>(i % count)], i / count, out, h);
      h.state = state(i);
      h.next = i + 1 == end ? nullptr : state(i + 1);
      with_isa(context.isa, [&]<Isa isa>() { kda_head<isa>(h); });
    }
  });
}

}  // namespace perigee::ops::cpu
