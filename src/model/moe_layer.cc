#include "model/layers.h"
#include "ops/act/act.h"
#include "ops/gemm/gemm.h"
#include "ops/moe_gemm/moe_gemm.h"
#include "ops/moe_permute/moe_permute.h"
#include "ops/moe_route/moe_route.h"
#include "ops/norm/norm.h"

namespace perigee::model {
namespace {

ops::GluParams glu_params(const Config& c) {
  const bool situ = c.activation == Activation::kSitu;
  return {situ ? ops::GluKind::kSitu : ops::GluKind::kSilu, c.situ_beta, c.situ_linear_beta};
}

}  // namespace

void dense_layer(const LayerRun& run, const DenseWeights& weights, const Tensor& out) {
  const int64_t f = weights.down.k;
  const Tensor hidden = run.rows_of(run.workspace.ffn_hidden).columns(0, 2 * f);  // gate | up
  const Tensor act = run.rows_of(run.workspace.ffn_act).columns(0, f);
  ops::gemm(run.context, run.rows_of(run.workspace.normed), weights.gate_up, hidden);
  ops::glu(run.context, hidden.columns(0, f), hidden.columns(f, f), glu_params(run.config), act);
  ops::gemm(run.context, act, weights.down, out);
}

void moe_layer(const LayerRun& run, const MoeWeights& weights, const Tensor& out) {
  const Config& c = run.config;
  const ops::Context& ctx = run.context;
  Workspace& w = run.workspace;
  const int64_t t = run.rows;
  const int64_t slots = t * c.active_experts;
  const int64_t f = c.expert_width;
  const Tensor x = run.rows_of(w.normed);

  // The router reads the full-width input, in FP32.
  const Tensor logits = run.rows_of(w.router_logits);  // [T, E]
  const Tensor ids = run.rows_of(w.expert_ids);        // [T, A]
  const Tensor scores = run.rows_of(w.expert_weights); // [T, A]
  ops::gemm(ctx, x, weights.router, logits);
  ops::moe_route(ctx, logits, weights.router_bias, {c.active_experts, c.renormalize, c.routed_scale}, ids,
                 scores);

  const bool latent = c.expert_latent > 0;
  Tensor z = x;
  if (latent) {
    z = run.rows_of(w.latent_in);  // [T, Z]
    ops::gemm(ctx, x, weights.latent_down, z);
  }

  const Tensor offsets = w.expert_offsets.reshape({c.experts + 1});
  const Tensor source = w.expert_source.slice(0, slots).reshape({slots});
  const Tensor place = run.rows_of(w.expert_place);  // [T, A]
  ops::moe_permute(ctx, ids, c.experts, offsets, source, place);
  const Tensor hidden = w.expert_hidden.slice(0, slots);  // [T*A, 2F]
  const Tensor act = w.expert_act.slice(0, slots);        // [T*A, F]
  const Tensor expert_out = w.expert_out.slice(0, slots); // [T*A, Z]
  ops::moe_gemm(ctx, z, &source, offsets, weights.gate_up, hidden);
  ops::glu(ctx, hidden.columns(0, f), hidden.columns(f, f), glu_params(c), act);
  ops::moe_gemm(ctx, act, nullptr, offsets, weights.down, expert_out);

  // Shared experts first, so that `out` may receive the routed part's last product.
  const bool shared = c.shared_experts > 0;
  const Tensor shared_out = run.rows_of(w.delta2);
  if (shared) dense_layer(run, weights.shared, shared_out);

  if (!latent) {
    ops::moe_combine(ctx, expert_out, place, scores, out);
  } else {
    Tensor combined = run.rows_of(w.combined);  // [T, Z]
    ops::moe_combine(ctx, expert_out, place, scores, combined);
    if (c.latent_norm) {  // after the combine, before the up-projection
      const Tensor normed = run.rows_of(w.combined_normed);
      ops::rms_norm(ctx, combined, weights.latent_norm, c.norm_eps, normed);
      combined = normed;
    }
    ops::gemm(ctx, combined, weights.latent_up, out);
  }
  if (shared) ops::add(ctx, out, shared_out, out);
}

}  // namespace perigee::model
