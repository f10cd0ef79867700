#include <algorithm>
#include <cmath>

#include "model/layers.h"
#include "ops/act/act.h"
#include "ops/copy/copy.h"
#include "ops/gemm/gemm.h"
#include "ops/index_score/index_score.h"
#include "ops/mla/mla.h"
#include "ops/norm/norm.h"
#include "ops/page_io/page_io.h"
#include "ops/topk/topk.h"

namespace perigee::model {
namespace {

constexpr double kIndexNormEps = 1e-6;  // LayerNorm of the index keys

// The column groups of the packed input projection.
struct MlaInputs {
  Tensor query;        // q_a or, without a low rank, the whole query
  Tensor latent;       // C
  Tensor rope;         // r, shared by all heads, neither normed nor rotated
  Tensor gate;         // H*v
  Tensor index_key;    // J
  Tensor index_gates;  // I
};

MlaInputs split_inputs(const Config& c, const Tensor& in) {
  MlaInputs s;
  int64_t at = 0;
  const auto take = [&](int64_t width) {
    at += width;
    return in.columns(at - width, width);
  };
  s.query = take(c.q_lora > 0 ? c.q_lora : c.heads * (c.qk_nope + c.qk_rope));
  s.latent = take(c.kv_lora);
  s.rope = take(c.qk_rope);
  s.gate = take(c.mla_output_gate ? c.heads * c.v_head : 0);
  s.index_key = take(c.index_topk > 0 ? c.index_dim : 0);
  s.index_gates = take(c.index_topk > 0 ? c.index_heads : 0);
  return s;
}

// q_absorbed[t, h] = [key_up_h q_nope | q_rope]: the query in latent coordinates.
void absorb_query(const LayerRun& run, const MlaWeights& weights, const Tensor& q, const Tensor& absorbed) {
  const Config& c = run.config;
  std::vector<ops::GemmItem> products;
  std::vector<ops::CopyItem> copies;
  for (int64_t h = 0; h < c.heads; ++h) {
    const int64_t from = h * (c.qk_nope + c.qk_rope);
    const int64_t to = h * (c.kv_lora + c.qk_rope);
    products.push_back({q.columns(from, c.qk_nope), weights.key_up[static_cast<size_t>(h)],
                        absorbed.columns(to, c.kv_lora)});
    copies.push_back({q.columns(from + c.qk_nope, c.qk_rope), absorbed.columns(to + c.kv_lora, c.qk_rope)});
  }
  ops::gemm_batched(run.context, products);
  if (c.qk_rope > 0) ops::copy(run.context, copies);
}

// Physical rows of the selected positions, where the device wants them.
Tensor places_of(const LayerRun& run) {
  const Tensor& all = run.workspace.selected_places;
  return all.data != nullptr ? run.rows_of(all) : Tensor();
}

// The lightning indexer: new keys into the cache, then the selected positions of every row, a block of rows at a time so that
// the score buffer stays bounded. A row that sees no more than the selection holds selects everything and is not scored.
void run_indexer(const LayerRun& run, const MlaWeights& weights, const MlaInputs& in, const Tensor& q_low,
                 int64_t index) {
  const Config& c = run.config;
  Workspace& w = run.workspace;
  const KeyFormat format = run.pool.layout().formats.key;
  const tensor::PagePlace places = run.pool.keys(index);
  const Tensor keys = run.rows_of(w.index_key);  // [T, J]
  ops::layer_norm(run.context, in.index_key, weights.index.key_norm, weights.index.key_bias, kIndexNormEps,
                  keys);
  ops::write_keys(run.context, keys, format, run.parts, places);

  // A graph on a GPU serves every length of its sequences.
  bool beyond = run.context.device == tensor::Device::kCuda;
  for (const tensor::Part& p : run.parts.host) beyond = beyond || p.position + p.rows > c.index_topk;
  const Tensor flat = run.rows_of(w.index_q);  // [T, I*J]
  if (beyond) ops::gemm(run.context, q_low, weights.index.q, flat);
  const Tensor queries = flat.reshape({run.rows, c.index_heads, c.index_dim});
  for (int64_t first = 0; first < run.rows; first += w.score_rows) {
    const Tensor scores = w.index_scores.slice(0, std::min(run.rows - first, w.score_rows));
    if (beyond) {
      ops::index_score(run.context, queries, in.index_gates, format, run.parts, places, first, c.index_topk, scores);
    }
    ops::topk(run.context, scores, run.parts, first, c.index_topk, run.pool.latents(index), run.rows_of(w.selected),
              run.rows_of(w.selected_count).reshape({run.rows}), places_of(run));
  }
}

}  // namespace

void mla_layer(const LayerRun& run, const MlaWeights& weights, int64_t index, const Tensor& out) {
  const Config& c = run.config;
  const ops::Context& ctx = run.context;
  Workspace& w = run.workspace;
  const int64_t t = run.rows;
  const LatentFormat format = run.pool.layout().formats.latent;
  const tensor::PagePlace places = run.pool.latents(index);

  const Tensor packed = run.rows_of(w.mla_in);
  ops::gemm(ctx, run.rows_of(w.normed), weights.in, packed);
  const MlaInputs in = split_inputs(c, packed);

  Tensor q = in.query;
  Tensor q_low = in.query;
  if (c.q_lora > 0) {
    q_low = run.rows_of(w.mla_q_normed);
    ops::rms_norm(ctx, in.query, weights.q_norm, c.lora_norm_eps, q_low);
    q = run.rows_of(w.mla_q);  // [T, H*(nope+r)]
    ops::gemm(ctx, q_low, weights.q_b, q);
  }
  const Tensor absorbed = run.rows_of(w.mla_q_absorbed);  // [T, H*(C+r)]
  absorb_query(run, weights, q, absorbed);

  // New latents pass through the cache format before anyone reads them, this step's rows included.
  const Tensor latent = run.rows_of(w.mla_latent);  // [T, C]
  ops::rms_norm(ctx, in.latent, weights.kv_norm, c.lora_norm_eps, latent);
  ops::write_latents(ctx, latent, in.rope, format, run.parts, places);

  ops::Selection selection;
  const bool sparse = c.index_topk > 0;
  if (sparse) {
    run_indexer(run, weights, in, q_low, index);
    selection = {run.rows_of(w.selected), run.rows_of(w.selected_count).reshape({t}),
                 places_of(run)};
    if (run.taps.selected) run.taps.selected(index, selection);
  }

  const Tensor out_latent = run.rows_of(w.mla_out_latent);  // [T, H*C]
  const double scale = 1.0 / std::sqrt(static_cast<double>(c.qk_nope + c.qk_rope));
  ops::mla(ctx, absorbed.reshape({t, c.heads, c.kv_lora + c.qk_rope}), format, c.kv_lora, scale, run.parts, places,
           sparse ? &selection : nullptr, w.mla_partial, out_latent.reshape({t, c.heads, c.kv_lora}),
           run.rows_of(w.mla_lse));

  const Tensor values = run.rows_of(w.mla_out);  // [T, H*v]
  std::vector<ops::GemmItem> products;
  for (int64_t h = 0; h < c.heads; ++h) {
    products.push_back({out_latent.columns(h * c.kv_lora, c.kv_lora), weights.value_up[static_cast<size_t>(h)],
                        values.columns(h * c.v_head, c.v_head)});
  }
  ops::gemm_batched(ctx, products);
  if (c.mla_output_gate) ops::sigmoid_gate(ctx, values, in.gate, values);
  ops::gemm(ctx, values, weights.out, out);
}

}  // namespace perigee::model
