#include "model/weight_table.h"

#include "num/records.h"

namespace perigee::model {
namespace {

using load::FileDType;
using MatrixOf = Weight& (*)(Weights&, int64_t, int64_t);
using TensorOf = Tensor& (*)(Weights&, int64_t);

LayerWeights& at(Weights& w, int64_t layer) {
  return w.layers[static_cast<size_t>(layer)];
}

// Deviations that keep a random model's activations near 1 and its choices sharp enough to differ.
constexpr double kGainIn = 0.7;
constexpr double kGainQuery = 1.0;
constexpr double kGainGate = 1.4;
constexpr double kGainOut = 0.5;
constexpr double kGainRouted = 0.2;
constexpr double kGainMixer = 0.9;

constexpr int64_t kALogPadding = 128;  // Kimi K3 pads A_log to a multiple of this

class TableBuilder {
 public:
  explicit TableBuilder(const Config& config) : c_(config) {}

  std::vector<TensorRow> text() {
    vector("model.embed_tokens.weight", {c_.vocab, c_.hidden}, FileDType::kBF16, Fill::kEmbedding,
           [](Weights& w, int64_t) -> Tensor& { return w.embed; });
    rows_.back().shard = Shard::kRows;
    rows_.back().active = 0;  // a look-up reads one row
    for (layer_ = 0; layer_ < c_.layers; ++layer_) layer();
    layer_ = -1;
    vector("model.norm.weight", {c_.hidden}, FileDType::kBF16, Fill::kNorm,
           [](Weights& w, int64_t) -> Tensor& { return w.final_norm; });
    if (c_.attn_res_block > 0) {
      mixer("model.output_attn_res", [](Weights& w, int64_t) -> Tensor& { return w.final_res; });
    }
    matrix(
        c_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight", c_.vocab, c_.hidden,
        [](Weights& w, int64_t, int64_t) -> Weight& { return w.head; }, Shard::kRows, kGainIn);
    rows_.back().alias = c_.tied_embeddings;
    if (c_.tied_embeddings) rows_.back().parameters = 0;
    return std::move(rows_);
  }

 private:
  TensorRow& add(const std::string& name, FileDType dtype, std::vector<int64_t> dims, Pack pack) {
    TensorRow row;
    row.name = name;
    row.layer = layer_;
    row.dtype = dtype;
    row.dims = std::move(dims);
    row.pack = pack;
    row.n = row.dims[0];
    row.k = row.dims.size() == 1 ? 0 : row.dims.back();
    row.rows_total = row.n;
    row.parameters = 1;
    for (const int64_t dim : row.dims) row.parameters *= dim;
    row.active = row.parameters;
    rows_.push_back(std::move(row));
    return rows_.back();
  }

  void vector(const std::string& name, std::vector<int64_t> dims, FileDType dtype, Fill fill,
              TensorOf to) {
    TensorRow& row = add(name, dtype, std::move(dims), Pack::kVector);
    row.fill = fill;
    row.tensor = to;
  }

  // A whole matrix of its own.
  TensorRow& matrix(const std::string& name, int64_t n, int64_t k, MatrixOf to, Shard shard,
                    double gain) {
    TensorRow& row = add(name, FileDType::kBF16, {n, k}, Pack::kMatrix);
    row.matrix = to;
    row.shard = shard;
    row.gain = gain;
    return row;
  }

  struct Part {
    const char* name;
    int64_t n;
    Shard shard = Shard::kRows;
    double gain = kGainIn;
  };
  // Several tensors of one input, one below the other.
  void fused(const std::string& base, std::initializer_list<Part> parts, int64_t k, MatrixOf to) {
    int64_t total = 0;
    for (const Part& part : parts) total += part.n;
    int64_t offset = 0;
    for (const Part& part : parts) {
      if (part.n == 0) continue;
      TensorRow& row = matrix(base + part.name, part.n, k, to, part.shard, part.gain);
      row.row_offset = offset;
      row.rows_total = total;
      offset += part.n;
    }
  }

  void mixer(const std::string& base, TensorOf to) {
    TensorRow& norm = add(base + "_norm.weight", FileDType::kBF16, {c_.hidden}, Pack::kMixerNorm);
    norm.fill = Fill::kNorm;
    norm.tensor = to;
    TensorRow& query =
        add(base + "_proj.weight", FileDType::kBF16, {1, c_.hidden}, Pack::kMixerQuery);
    query.gain = kGainMixer;
  }

  void layer() {
    const std::string base = "model.layers.{L}.";
    vector(base + "input_layernorm.weight", {c_.hidden}, FileDType::kBF16, Fill::kNorm,
           [](Weights& w, int64_t l) -> Tensor& { return at(w, l).input_norm; });
    vector(base + "post_attention_layernorm.weight", {c_.hidden}, FileDType::kBF16, Fill::kNorm,
           [](Weights& w, int64_t l) -> Tensor& { return at(w, l).post_norm; });
    if (c_.attn_res_block > 0) {
      mixer(base + "self_attention_res",
            [](Weights& w, int64_t l) -> Tensor& { return at(w, l).attn_res; });
      mixer(base + "mlp_res", [](Weights& w, int64_t l) -> Tensor& { return at(w, l).mlp_res; });
    }
    const bool is_kda = c_.layer_kind[static_cast<size_t>(layer_)] == LayerKind::kKda;
    is_kda ? kda(base + "self_attn.") : mla(base + "self_attn.");
    if (c_.is_dense(layer_)) {
      mlp(
          base + "mlp.", c_.dense_width,
          [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).dense.gate_up; },
          [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).dense.down; });
    } else {
      moe(base + "block_sparse_moe.");
    }
  }

  void kda(const std::string& base) {
    const int64_t d = c_.hidden, p = c_.kda_width(), dim = c_.kda_head_dim, h = c_.kda_heads;
    const Part gate = c_.full_rank_gate ? Part{"g_proj.weight", p, Shard::kHeads}
                                        : Part{"g_a_proj.weight", dim, Shard::kReplicated};
    fused(base,
          {{"q_proj.weight", p, Shard::kHeads},
           {"k_proj.weight", p, Shard::kHeads},
           {"v_proj.weight", p, Shard::kHeads},
           gate,
           {"f_a_proj.weight", dim, Shard::kReplicated},
           {"b_proj.weight", h, Shard::kHeads, kGainGate}},
          d, [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).kda.in; });
    matrix(
        base + "f_b_proj.weight", p, dim,
        [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).kda.f_b; }, Shard::kHeads,
        kGainIn);
    if (!c_.full_rank_gate) {
      matrix(
          base + "g_b_proj.weight", p, dim,
          [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).kda.g_b; }, Shard::kHeads,
          kGainIn);
    }
    int64_t offset = 0;
    for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
      vector(base + name, {p, 1, c_.conv_width}, FileDType::kF32, Fill::kConv,
             [](Weights& w, int64_t l) -> Tensor& { return at(w, l).kda.conv; });
      rows_.back().row_offset = offset;
      rows_.back().rows_total = 3 * p;
      rows_.back().shard = Shard::kHeads;
      offset += p;
    }
    const int64_t padded = (h + kALogPadding - 1) / kALogPadding * kALogPadding;
    vector(base + "A_log", {c_.kind == Kind::kKimiLinear ? h : padded}, FileDType::kF32,
           Fill::kALog, [](Weights& w, int64_t l) -> Tensor& { return at(w, l).kda.a_log; });
    rows_.back().any_shape = true;
    rows_.back().n = rows_.back().rows_total = h;
    rows_.back().shard = Shard::kHeads;
    vector(base + "dt_bias", {p}, FileDType::kF32, Fill::kDtBias,
           [](Weights& w, int64_t l) -> Tensor& { return at(w, l).kda.dt_bias; });
    rows_.back().shard = Shard::kHeads;
    vector(base + "o_norm.weight", {dim}, FileDType::kF32, Fill::kNorm,
           [](Weights& w, int64_t l) -> Tensor& { return at(w, l).kda.out_norm; });
    matrix(
        base + "o_proj.weight", d, p,
        [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).kda.out; }, Shard::kColumns,
        kGainOut);
  }

  void mla(const std::string& base) {
    const int64_t d = c_.hidden, h = c_.heads, q = c_.q_lora,
                  query_rows = h * (c_.qk_nope + c_.qk_rope);
    const Part query = q > 0 ? Part{"q_a_proj.weight", q, Shard::kReplicated}
                             : Part{"q_proj.weight", query_rows, Shard::kHeads, kGainQuery};
    const bool indexed = c_.index_topk > 0;
    fused(base,
          {query,
           {"kv_a_proj_with_mqa.weight", c_.kv_lora + c_.qk_rope, Shard::kReplicated},
           {"g_proj.weight", c_.mla_output_gate ? h * c_.v_head : 0, Shard::kHeads},
           {"indexer.wk.weight", indexed ? c_.index_dim : 0, Shard::kReplicated},
           {"indexer.weights_proj.weight", indexed ? c_.index_heads : 0, Shard::kReplicated}},
          d, [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).mla.in; });
    if (q > 0) {
      vector(base + "q_a_layernorm.weight", {q}, FileDType::kBF16, Fill::kNorm,
             [](Weights& w, int64_t l) -> Tensor& { return at(w, l).mla.q_norm; });
      matrix(
          base + "q_b_proj.weight", query_rows, q,
          [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).mla.q_b; }, Shard::kHeads,
          kGainQuery);
    }
    vector(base + "kv_a_layernorm.weight", {c_.kv_lora}, FileDType::kBF16, Fill::kNorm,
           [](Weights& w, int64_t l) -> Tensor& { return at(w, l).mla.kv_norm; });
    TensorRow& kv = add(base + "kv_b_proj.weight", FileDType::kBF16,
                        {h * (c_.qk_nope + c_.v_head), c_.kv_lora}, Pack::kHeadMatrices);
    kv.shard = Shard::kHeads;
    matrix(
        base + "o_proj.weight", d, h * c_.v_head,
        [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).mla.out; }, Shard::kColumns,
        kGainOut);
    if (!indexed) return;
    matrix(
        base + "indexer.wq_b.weight", c_.index_heads * c_.index_dim, q,
        [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).mla.index.q; },
        Shard::kReplicated, kGainIn);
    vector(base + "indexer.k_norm.weight", {c_.index_dim}, FileDType::kF32, Fill::kNorm,
           [](Weights& w, int64_t l) -> Tensor& { return at(w, l).mla.index.key_norm; });
    vector(base + "indexer.k_norm.bias", {c_.index_dim}, FileDType::kF32, Fill::kBias,
           [](Weights& w, int64_t l) -> Tensor& { return at(w, l).mla.index.key_bias; });
  }

  void mlp(const std::string& base, int64_t width, MatrixOf gate_up, MatrixOf down) {
    fused(base, {{"gate_proj.weight", width}, {"up_proj.weight", width}}, c_.hidden, gate_up);
    matrix(base + "down_proj.weight", c_.hidden, width, down, Shard::kColumns, kGainOut);
  }

  void moe(const std::string& base) {
    const int64_t d = c_.hidden, z = c_.expert_latent;
    matrix(
        base + "gate.weight", c_.experts, d,
        [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).moe.router; },
        Shard::kReplicated, kGainGate);
    vector(base + "gate.e_score_correction_bias", {c_.experts}, FileDType::kF32, Fill::kBias,
           [](Weights& w, int64_t l) -> Tensor& { return at(w, l).moe.router_bias; });
    if (z > 0) {
      matrix(
          base + "routed_expert_down_proj.weight", z, d,
          [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).moe.latent_down; },
          Shard::kReplicated, kGainIn);
      matrix(
          base + "routed_expert_up_proj.weight", d, z,
          [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).moe.latent_up; },
          Shard::kReplicated, c_.latent_norm ? kGainRouted : kGainIn);
      if (c_.latent_norm) {
        vector(base + "routed_expert_norm.weight", {z}, FileDType::kBF16, Fill::kNorm,
               [](Weights& w, int64_t l) -> Tensor& { return at(w, l).moe.latent_norm; });
      }
    }
    if (c_.shared_experts > 0) {
      mlp(
          base + "shared_experts.", c_.shared_width(),
          [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).moe.shared.gate_up; },
          [](Weights& w, int64_t l, int64_t) -> Weight& { return at(w, l).moe.shared.down; });
    }
    experts(base + "experts.{E}.");
  }

  void experts(const std::string& base) {
    const MatrixOf gate_up = [](Weights& w, int64_t l, int64_t e) -> Weight& {
      return at(w, l).moe.gate_up[static_cast<size_t>(e)];
    };
    const MatrixOf down = [](Weights& w, int64_t l, int64_t e) -> Weight& {
      return at(w, l).moe.down[static_cast<size_t>(e)];
    };
    const int64_t f = c_.expert_width, in = c_.expert_input();
    expert_part(base + "w1.weight", f, in, 0, 2 * f, gate_up, kGainIn);
    expert_part(base + "w3.weight", f, in, f, 2 * f, gate_up, kGainIn);
    expert_part(base + "w2.weight", in, f, 0, in, down, c_.latent_norm ? kGainIn : kGainRouted);
  }

  void expert_part(const std::string& name, int64_t n, int64_t k, int64_t offset, int64_t total,
                   MatrixOf to, double gain) {
    const bool packed = c_.packed_experts;
    TensorRow& row = packed ? add(name + "_packed", FileDType::kU8, {n, k / 2}, Pack::kCodes)
                            : add(name, FileDType::kBF16, {n, k}, Pack::kMatrix);
    row.k = k;
    row.row_offset = offset;
    row.rows_total = total;
    row.matrix = to;
    row.gain = gain;
    row.parameters = n * k;
    row.active = n * k * c_.active_experts;
    row.copies = c_.experts;
    row.shard = Shard::kExperts;
    if (!packed) return;
    TensorRow& scales = add(name + "_scale", FileDType::kU8, {n, k / kMxfp4Group}, Pack::kScales);
    scales.gain = gain;
    scales.parameters = scales.active = 0;
    scales.copies = c_.experts;
    scales.shard = Shard::kExperts;
  }

  const Config& c_;
  int64_t layer_ = -1;
  std::vector<TensorRow> rows_;
};

}  // namespace

int64_t TensorRow::bytes() const {
  int64_t elements = 1;
  for (const int64_t dim : dims) elements *= dim;
  return elements * load::file_dtype_bits(dtype) / 8;
}

std::vector<TensorRow> weight_table(const Config& config) {
  return TableBuilder(config).text();
}

std::vector<TensorRow> vision_table(const Config& config) {
  std::vector<TensorRow> rows;
  if (!config.vision) return rows;
  const VisionConfig& v = *config.vision;
  const auto add = [&](const std::string& name, std::vector<int64_t> dims, int64_t layer = -1) {
    TensorRow row;
    row.name = name;
    row.layer = layer;
    row.dims = std::move(dims);
    row.parameters = 1;
    for (const int64_t dim : row.dims) row.parameters *= dim;
    rows.push_back(std::move(row));
  };
  add("vision_tower.patch_embed.proj.weight", {v.width, 3, v.patch, v.patch});
  add("vision_tower.patch_embed.pos_emb.weight", {v.grid_height, v.grid_width, v.width});
  for (int64_t layer = 0; layer < v.layers; ++layer) {
    const std::string base = "vision_tower.encoder.blocks.{L}.";
    add(base + "norm0.weight", {v.width}, layer);
    add(base + "norm1.weight", {v.width}, layer);
    add(base + "wqkv.weight", {3 * v.qkv_width, v.width}, layer);
    add(base + "wo.weight", {v.width, v.qkv_width}, layer);
    add(base + "mlp.fc0.weight", {v.inner, v.width}, layer);
    add(base + "mlp.fc1.weight", {v.width, v.inner}, layer);
  }
  add("vision_tower.encoder.final_layernorm.weight", {v.width});
  add("mm_projector.proj.0.weight", {v.merged, v.merged});
  add("mm_projector.proj.2.weight", {v.text_width, v.merged});
  add("mm_projector.post_norm.weight", {v.text_width});
  return rows;
}

std::string expand(const std::string& pattern, int64_t layer, int64_t expert) {
  std::string name;
  name.reserve(pattern.size() + 8);
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool field = pattern[i] == '{' && i + 2 < pattern.size() && pattern[i + 2] == '}';
    if (!field || (pattern[i + 1] != 'L' && pattern[i + 1] != 'E')) {
      name += pattern[i];
      continue;
    }
    name += std::to_string(pattern[i + 1] == 'L' ? layer : expert);
    i += 2;
  }
  return name;
}

}  // namespace perigee::model
