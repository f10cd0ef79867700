#include "model/workspace.h"

#include <algorithm>

#include "ops/mla/mla.h"
#include "tensor/page_view.h"

namespace perigee::model {
namespace {

using tensor::DType;

// Index scores of a block of rows: as many rows as fit, so that a long context costs bounded memory.
constexpr int64_t kScoreBytes = int64_t{32} << 20;
constexpr int64_t kScoreBytesGpu = int64_t{512} << 20;
constexpr int64_t kPartialBytes = int64_t{256} << 20;  // of rows whose attention is divided

struct Piece {
  Tensor* tensor;
  DType dtype;
  int64_t rows;
  int64_t width;
};

int64_t kda_gate_width(const Config& c) { return c.full_rank_gate ? c.kda_width() : c.kda_head_dim; }

std::vector<Piece> pieces(const Config& c, tensor::Device device, Workspace* w) {
  const DType act = ops::activation_dtype(device);
  const DType real = ops::real_dtype(device);
  const DType hidden = device == tensor::Device::kCuda ? real : act;  // a GPU does not round before the activation
  const int64_t t = w->rows_max;
  const int64_t p = c.count(LayerKind::kKda) > 0 ? c.kda_width() : 0;
  const int64_t k = p > 0 ? c.kda_head_dim : 0;
  const int64_t h = c.count(LayerKind::kMla) > 0 ? c.heads : 0;
  const int64_t q_width = h * (c.qk_nope + c.qk_rope);
  const int64_t gate = c.mla_output_gate ? h * c.v_head : 0;
  const bool moe = c.dense_layers < c.layers;
  const int64_t slots = moe ? t * c.active_experts : 0;
  const int64_t z = c.expert_input();
  const int64_t ffn = std::max(c.dense_layers > 0 ? c.dense_width : 0, moe ? c.shared_width() : 0);
  std::vector<Piece> all = {
      {&w->mixed, act, t, c.hidden},
      {&w->normed, act, t, c.hidden},
      {&w->delta, act, t, c.hidden},
      {&w->delta2, act, t, c.hidden},
      {&w->kda_in, act, t, p > 0 ? 3 * p + kda_gate_width(c) + k + c.kda_heads : 0},
      {&w->kda_qkv, act, t, 3 * p},
      {&w->kda_decay, act, t, p},
      {&w->kda_gate, act, t, c.full_rank_gate ? 0 : p},
      {&w->kda_out, real, t, p},
      {&w->kda_normed, act, t, p},
      {&w->mla_in, act, t,
       h > 0 ? (c.q_lora > 0 ? c.q_lora : q_width) + c.kv_lora + c.qk_rope + gate + c.index_dim + c.index_heads
             : 0},
      {&w->mla_q_normed, act, t, c.q_lora},
      {&w->mla_q, act, t, c.q_lora > 0 ? q_width : 0},
      {&w->mla_q_absorbed, act, t, h * (c.kv_lora + c.qk_rope)},
      {&w->mla_latent, act, t, c.kv_lora},
      {&w->mla_out_latent, act, t, h * c.kv_lora},
      {&w->mla_out, act, t, h * c.v_head},
      {&w->mla_lse, real, t, h},
      {&w->index_q, act, t, c.index_heads * c.index_dim},
      {&w->index_key, act, t, c.index_dim},
      {&w->selected, DType::kI32, t, c.index_topk},
      {&w->selected_count, DType::kI32, t, 1},
      {&w->selected_places, DType::kI32, device == tensor::Device::kCuda ? t : 0, c.index_topk},
      {&w->ffn_hidden, hidden, t, 2 * ffn},
      {&w->ffn_act, act, t, ffn},
      {&w->router_logits, real, t, c.experts},
      {&w->expert_ids, DType::kI32, t, c.active_experts},
      {&w->expert_weights, real, t, c.active_experts},
      {&w->expert_offsets, DType::kI32, c.experts + 1, 1},
      {&w->expert_source, DType::kI32, slots, 1},
      {&w->expert_place, DType::kI32, t, c.active_experts},
      {&w->latent_in, act, t, c.expert_latent},
      {&w->expert_hidden, hidden, slots, 2 * c.expert_width},
      {&w->expert_act, act, slots, c.expert_width},
      {&w->expert_out, real, slots, z},
      {&w->combined, act, t, z},
      {&w->combined_normed, act, t, c.expert_latent},
  };
  for (Tensor& r : w->residual) all.push_back({&r, act, t, c.hidden});
  return all;
}

// Sets the sizes that pieces() reads, and lists all pieces.
std::vector<Piece> plan(const Config& config, tensor::Device device, int64_t rows_max, int64_t context_max, Workspace* w) {
  CHECK_GE(rows_max, 1);
  w->rows_max = rows_max;
  // Bank rows plus the live accumulator; two accumulators when there is no bank.
  const int64_t block = config.attn_res_block;
  w->residual.resize(static_cast<size_t>(block > 0 ? (config.layers + block - 1) / block + 1 : 1));
  const DType act = ops::activation_dtype(device);
  const int64_t score_width = (context_max + tensor::kPageTokens - 1) / tensor::kPageTokens * tensor::kPageTokens;
  const int64_t score_bytes = score_width * tensor::dtype_bytes(act);
  if (config.index_topk > 0 && context_max > 0) {
    const int64_t bytes = device == tensor::Device::kCuda ? kScoreBytesGpu : kScoreBytes;
    w->score_rows = std::clamp<int64_t>(bytes / score_bytes, 1, rows_max);
  }
  std::vector<Piece> all = pieces(config, device, w);
  all.push_back({&w->index_scores, act, w->score_rows, score_width});
  if (config.count(LayerKind::kMla) > 0) {
    const int64_t slots = config.index_topk > 0 ? std::min(config.index_topk, context_max) : context_max;
    w->mla_partial_dims = ops::mla_workspace(device, rows_max, config.heads, config.kv_lora, slots, kPartialBytes);
    const auto& [rows, units, heads, width] = w->mla_partial_dims;
    all.push_back({&w->mla_partial, DType::kF32, rows, units * heads * width});
  }
  return all;
}

size_t bytes_of(const std::vector<Piece>& all) {
  size_t bytes = 0;
  for (const Piece& p : all) {
    bytes += tensor::aligned(static_cast<size_t>(p.rows * p.width * tensor::dtype_bytes(p.dtype)));
  }
  return bytes;
}

}  // namespace

int64_t Workspace::bytes(const Config& config, tensor::Device device, int64_t rows_max, int64_t context_max) {
  Workspace w;
  return static_cast<int64_t>(bytes_of(plan(config, device, rows_max, context_max, &w)));
}

Result<Workspace> Workspace::create(const Config& config, tensor::Device device, int64_t rows_max,
                                    int64_t context_max) {
  Workspace w;
  const std::vector<Piece> all = plan(config, device, rows_max, context_max, &w);
  Result<tensor::Arena> arena = tensor::Arena::create(
      bytes_of(all), fmt::format("the workspace for steps of {} tokens (--max-num-batched-tokens)", rows_max), device);
  if (!arena.ok()) return arena.error();
  w.arena = std::move(*arena);
  for (const Piece& p : all) {
    if (p.rows * p.width > 0) *p.tensor = w.arena.tensor(p.dtype, {p.rows, p.width});
  }
  if (w.mla_partial.data != nullptr) {
    const auto& [rows, units, heads, width] = w.mla_partial_dims;
    w.mla_partial = w.mla_partial.reshape({rows, units, heads, width});
  }
  w.arena.freeze();
  return w;
}

}  // namespace perigee::model
