// What    The dimensions and switches of one checkpoint, read from config.json and checked once.
// Owner   model. Everything else takes the numbers from here and never looks at JSON.
// Threads Read-only after load.
// Errors  Result with one sentence that names the file, the key and what it must be.
// Source  The published Kimi K3 and Kimi-Linear configurations; index_* keys as DeepSeek-V3.2 names them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace perigee::model {

enum class Kind { kKimiLinear, kKimiK3, kKimiK31 };
const char* kind_name(Kind kind);

enum class LayerKind : uint8_t { kKda, kMla };
enum class Activation : uint8_t { kSitu, kSilu };

// Sizes of the image tower and its projector, as the tensors of the checkpoint have them.
struct VisionConfig {
  int64_t patch = 0;
  int64_t width = 0;       // of the tower
  int64_t inner = 0;       // of its feed-forward
  int64_t layers = 0;
  int64_t qkv_width = 0;   // of each of q, k and v
  int64_t grid_height = 0;
  int64_t grid_width = 0;
  int64_t merged = 0;      // input of the projector: merge kernel times width
  int64_t text_width = 0;  // output of the projector
};

struct Config {
  Kind kind = Kind::kKimiK3;
  std::string path;  // the file it came from, for messages

  int64_t hidden = 0;         // D
  int64_t layers = 0;         // L
  int64_t vocab = 0;          // O
  int64_t positions_max = 0;  // longest context
  double norm_eps = 1e-5;
  double lora_norm_eps = 1e-6;  // q_a_layernorm and kv_a_layernorm
  std::vector<LayerKind> layer_kind;  // [L], 0-based
  int32_t bos_id = -1;
  int32_t eos_id = -1;
  int32_t pad_id = -1;
  std::vector<int32_t> stop_ids;  // eos of the configuration and of generation_config.json
  bool tied_embeddings = false;

  Activation activation = Activation::kSitu;
  double situ_beta = 4.0;
  double situ_linear_beta = 25.0;

  // KDA
  int64_t kda_heads = 0;
  int64_t kda_head_dim = 0;  // K = V
  int64_t conv_width = 4;
  std::optional<double> gate_lower_bound;  // absent: softplus decay (Kimi-Linear)
  bool full_rank_gate = true;              // false: g_a_proj, g_b_proj

  // MLA
  int64_t heads = 0;      // H
  int64_t q_lora = 0;     // 0: one q_proj
  int64_t kv_lora = 0;    // C
  int64_t qk_nope = 0;
  int64_t qk_rope = 0;    // r, never rotated
  int64_t v_head = 0;
  bool mla_output_gate = false;

  // Indexer; index_topk == 0 means none
  int64_t index_topk = 0;   // X
  int64_t index_heads = 0;  // I
  int64_t index_dim = 0;    // J

  // Feed-forward
  int64_t dense_width = 0;   // intermediate_size
  int64_t dense_layers = 0;  // first_k_dense_replace
  int64_t experts = 0;       // E
  int64_t active_experts = 0;  // A
  int64_t expert_width = 0;  // F
  int64_t shared_experts = 0;
  int64_t expert_latent = 0;  // Z; 0: experts read and write D directly (Kimi-Linear)
  bool latent_norm = false;
  bool renormalize = true;
  double routed_scale = 1.0;
  bool packed_experts = false;  // MXFP4 (compressed-tensors mxfp4-pack-quantized)

  int64_t attn_res_block = 0;  // 0: plain residuals

  // Image tower and projector; absent: a text-only checkpoint.
  std::optional<VisionConfig> vision;
  bool has_vision() const { return vision.has_value(); }

  int64_t shared_width() const { return shared_experts * expert_width; }
  int64_t expert_input() const { return expert_latent > 0 ? expert_latent : hidden; }
  bool is_dense(int64_t layer) const { return layer < dense_layers; }
  int64_t kda_width() const { return kda_heads * kda_head_dim; }  // P
  int64_t count(LayerKind k) const;
};

// Reads MODEL/config.json (or the file itself if `path` ends in .json) and MODEL/generation_config.json if present.
Result<Config> read_config(const std::string& path);

// The same from JSON text; `name` stands in messages.
Result<Config> parse_config(const std::string& text, const std::string& name);

}  // namespace perigee::model
