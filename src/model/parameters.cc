#include "model/parameters.h"

#include <nlohmann/json.hpp>

#include "model/weight_table.h"
#include "num/records.h"

namespace perigee::model {
namespace {

struct NamedLatent {
  LatentFormat format;
  const char* name;
};
struct NamedKey {
  KeyFormat format;
  const char* name;
};
constexpr NamedLatent kLatents[] = {
    {LatentFormat::kBf16, "bf16"}, {LatentFormat::kFp8, "fp8"}, {LatentFormat::kNvfp4, "nvfp4"}};
constexpr NamedKey kKeys[] = {
    {KeyFormat::kBf16, "bf16"}, {KeyFormat::kFp8, "fp8"}, {KeyFormat::kMxfp4, "mxfp4"}};

std::vector<TokenBytes> token_bytes(const Config& c) {
  const int64_t layers = c.count(LayerKind::kMla);
  std::vector<TokenBytes> table;
  for (const NamedLatent& latent : kLatents) {
    const int64_t record = latent_bytes(latent.format, c.kv_lora, c.qk_rope);
    if (record == 0) continue;
    if (c.index_topk == 0) {
      table.push_back({latent.name, "", layers * record, 0});
      continue;
    }
    for (const NamedKey& key : kKeys) {
      const int64_t key_record = key_bytes(key.format, c.index_dim);
      if (key_record > 0)
        table.push_back({latent.name, key.name, layers * record, layers * key_record});
    }
  }
  return table;
}

// "2,779,484,478,208"
std::string grouped(int64_t n) {
  std::string digits = std::to_string(n);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string scaled(int64_t n, const char* unit, double step,
                   std::initializer_list<const char*> prefixes) {
  double x = static_cast<double>(n);
  const char* prefix = "";
  for (const char* next : prefixes) {
    if (x < step) break;
    x /= step;
    prefix = next;
  }
  return fmt::format("{:.2f} {}{}", x, prefix, unit);
}

std::string size_text(int64_t bytes) {
  return fmt::format("{} ({})", grouped(bytes),
                     scaled(bytes, "B", 1024, {"Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}));
}

std::string count_text(int64_t n) {
  return fmt::format("{} ({})", grouped(n), scaled(n, "", 1000, {"k", "M", "G", "T", "P", "E"}));
}

}  // namespace

Inspection inspect(const Config& config) {
  Inspection i;
  i.config = config;
  for (const TensorRow& row : weight_table(config)) {
    i.active_parameters += row.active;
    if (row.alias) continue;
    i.parameters += row.parameters * row.copies;
    i.text_tensors += row.copies;
    i.text_bytes += row.bytes() * row.copies;
  }
  i.tensors = i.text_tensors;
  i.bytes = i.text_bytes;
  for (const TensorRow& row : vision_table(config)) {
    i.vision_parameters += row.parameters;
    ++i.vision_tensors;
    ++i.tensors;
    i.bytes += row.bytes();
  }
  const int64_t state = config.kda_heads * config.kda_head_dim * config.kda_head_dim * 4;
  const int64_t window = 3 * config.kda_width() * (config.conv_width - 1) * 2;
  i.kda_state_bytes = config.count(LayerKind::kKda) * (state + window);
  i.token_bytes = token_bytes(config);
  return i;
}

std::string inspect_text(const Inspection& i) {
  const Config& c = i.config;
  std::string out;
  const auto line = [&](const char* label, const std::string& value) {
    out += fmt::format("{:<20}{}\n", label, value);
  };
  line("kind", kind_name(c.kind));
  line("layers", fmt::format("{}: {} KDA, {} full attention; {} dense, {} mixture of experts",
                             c.layers, c.count(LayerKind::kKda), c.count(LayerKind::kMla),
                             c.dense_layers, c.layers - c.dense_layers));
  line("width", fmt::format("{}, vocabulary {}, context {}", c.hidden, c.vocab, c.positions_max));
  line("KDA", fmt::format("{} heads of {}", c.kda_heads, c.kda_head_dim));
  line("full attention", fmt::format("{} heads, latent {} + {}", c.heads, c.kv_lora, c.qk_rope));
  if (c.index_topk > 0) {
    line("indexer",
         fmt::format("{} heads of {}, top {}", c.index_heads, c.index_dim, c.index_topk));
  }
  line("experts", fmt::format("{} of {} active, width {} on {}, {} shared, {}", c.active_experts,
                              c.experts, c.expert_width, c.expert_input(), c.shared_experts,
                              c.packed_experts ? "MXFP4" : "BF16"));
  if (c.attn_res_block > 0)
    line("attention residuals", fmt::format("blocks of {} layers", c.attn_res_block));
  line("parameters", count_text(i.parameters));
  line("active parameters",
       count_text(i.active_parameters) + " per token, without the input embedding");
  if (c.has_vision())
    line("image tower", count_text(i.vision_parameters) + " parameters beside them");
  line("tensors", grouped(i.tensors));
  line("bytes", size_text(i.bytes));
  line("KDA state", size_text(i.kda_state_bytes) + " per request");
  for (const TokenBytes& t : i.token_bytes) {
    const std::string formats =
        t.key.empty() ? t.latent + " latents" : t.latent + " latents, " + t.key + " keys";
    line("cache per token", fmt::format("{} bytes with {}", grouped(t.bytes()), formats));
  }
  return out;
}

std::string inspect_json(const Inspection& i) {
  using Json = nlohmann::ordered_json;
  const Config& c = i.config;
  Json cache = Json::array();
  for (const TokenBytes& t : i.token_bytes) {
    Json row = {{"latent", t.latent}};
    row["key"] = t.key.empty() ? Json(nullptr) : Json(t.key);
    row["latent_bytes"] = t.latent_bytes;
    row["key_bytes"] = t.key_bytes;
    row["bytes"] = t.bytes();
    cache.push_back(row);
  }
  Json out;
  out["kind"] = c.kind == Kind::kKimiLinear ? "kimi_linear"
                : c.kind == Kind::kKimiK3   ? "k3"
                                            : "k31";
  out["name"] = kind_name(c.kind);
  out["layers"] = c.layers;
  out["kda_layers"] = c.count(LayerKind::kKda);
  out["mla_layers"] = c.count(LayerKind::kMla);
  out["dense_layers"] = c.dense_layers;
  out["hidden"] = c.hidden;
  out["vocab"] = c.vocab;
  out["positions_max"] = c.positions_max;
  out["experts"] = c.experts;
  out["active_experts"] = c.active_experts;
  out["expert_format"] = c.packed_experts ? "mxfp4" : "bf16";
  out["index_topk"] = c.index_topk;
  out["index_heads"] = c.index_heads;
  out["index_dim"] = c.index_dim;
  out["parameters"] = i.parameters;
  out["active_parameters"] = i.active_parameters;
  out["vision_parameters"] = i.vision_parameters;
  out["tensors"] = i.tensors;
  out["text_tensors"] = i.text_tensors;
  out["vision_tensors"] = i.vision_tensors;
  out["bytes"] = i.bytes;
  out["text_bytes"] = i.text_bytes;
  out["kda_state_bytes"] = i.kda_state_bytes;
  out["kv_bytes_per_token"] = cache;
  return out.dump(1) + "\n";
}

}  // namespace perigee::model
