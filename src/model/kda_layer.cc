#include "model/layers.h"
#include "ops/conv1d/conv1d.h"
#include "ops/gemm/gemm.h"
#include "ops/kda/kda.h"
#include "ops/norm/norm.h"

namespace perigee::model {
void kda_layer(const LayerRun& run, const KdaWeights& weights, int64_t index, const Tensor& out) {
  const Config& c = run.config;
  const ops::Context& ctx = run.context;
  const int64_t t = run.rows;
  const int64_t p = c.kda_width();
  const int64_t h = c.kda_heads;
  const int64_t k = c.kda_head_dim;
  const int64_t gate_width = c.full_rank_gate ? p : k;

  // One product for everything that reads the input: q | k | v | gate | decay | beta.
  const Tensor in = run.rows_of(run.workspace.kda_in);
  ops::gemm(ctx, run.rows_of(run.workspace.normed), weights.in, in);
  const Tensor decay_in = in.columns(3 * p + gate_width, k);
  const Tensor beta = in.columns(3 * p + gate_width + k, h);

  const Tensor qkv = run.rows_of(run.workspace.kda_qkv);  // [T, 3P]
  ops::causal_conv1d(ctx, in.columns(0, 3 * p), weights.conv, run.parts, run.pool.conv_window(index),
                     run.pool.conv_open(index), qkv);

  const Tensor decay = run.rows_of(run.workspace.kda_decay);  // [T, P]
  ops::gemm(ctx, decay_in, weights.f_b, decay);
  Tensor gate = in.columns(3 * p, gate_width);
  if (!c.full_rank_gate) {
    const Tensor full = run.rows_of(run.workspace.kda_gate);  // [T, P]
    ops::gemm(ctx, gate, weights.g_b, full);
    gate = full;
  }

  const Tensor state_out = run.rows_of(run.workspace.kda_out).reshape({t, h, k});
  const ops::KdaInputs inputs = {qkv.columns(0, p).reshape({t, h, k}),
                                 qkv.columns(p, p).reshape({t, h, k}),
                                 qkv.columns(2 * p, p).reshape({t, h, k}),
                                 decay.reshape({t, h, k}),
                                 beta,
                                 weights.a_log,
                                 weights.dt_bias};
  ops::kda(ctx, inputs, {h, k, k, c.gate_lower_bound}, run.parts, run.pool.kda_state(index),
           run.pool.kda_open(index), state_out);

  const Tensor normed = run.rows_of(run.workspace.kda_normed);  // [T, P]
  ops::gated_rms_norm(ctx, state_out, weights.out_norm, gate, c.norm_eps, normed);
  ops::gemm(ctx, normed, weights.out, out);
}

}  // namespace perigee::model
