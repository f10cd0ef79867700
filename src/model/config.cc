#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "num/records.h"

namespace perigee::model {
namespace {

using nlohmann::json;

// Bounds far above any published model, and low enough that no product of sizes leaves 64 bits:
// layers * experts * 3 matrices * width^2 * 4 bytes < 2^63.
constexpr int64_t kWidthMax = int64_t{1} << 18;
constexpr int64_t kLayersMax = 1024;
constexpr int64_t kExpertsMax = 8192;
constexpr int64_t kVocabMax = int64_t{1} << 24;
constexpr int64_t kPositionsMax = int64_t{1} << 40;
constexpr size_t kConfigBytesMax = size_t{16} << 20;

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// One JSON object of a file. The first wrong key becomes the error; later reads return harmless values, so that the
// caller checks once at the end.
class Fields {
 public:
  Fields(const json& object, std::string file, std::string prefix, std::optional<Error>& error)
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)), error_(error) {}

  // A key that is null counts as absent.
  const json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has(const char* key) const { return find(key) != nullptr; }
  std::string place(const char* key) const { return prefix_ + key; }

  void wrong(const char* key, const std::string& must) {
    if (error_) return;
    const json* value = find(key);
    if (value == nullptr) {
      error_ = invalid_argument("{}: {} is missing, it must be {}", file_, place(key), must);
    } else {
      error_ =
          invalid_argument("{}: {} is {}, it must be {}", file_, place(key), shown(*value), must);
    }
  }

  int64_t integer(const char* key, int64_t low, int64_t high) {
    const json* value = find(key);
    if (value != nullptr && value->is_number_integer()) {
      const bool fits = !value->is_number_unsigned() ||
                        value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
      if (fits && value->get<int64_t>() >= low && value->get<int64_t>() <= high)
        return value->get<int64_t>();
    }
    wrong(key, fmt::format("a whole number from {} to {}", low, high));
    return low;
  }
  int64_t integer_or(const char* key, int64_t low, int64_t high, int64_t otherwise) {
    return has(key) ? integer(key, low, high) : otherwise;
  }
  int64_t width(const char* key) { return integer(key, 1, kWidthMax); }

  double number(const char* key, double low, double high) {
    const json* value = find(key);
    if (value != nullptr && value->is_number()) {
      const double x = value->get<double>();
      if (x >= low && x <= high) return x;
    }
    wrong(key, fmt::format("a number from {} to {}", low, high));
    return low;
  }
  double number_or(const char* key, double low, double high, double otherwise) {
    return has(key) ? number(key, low, high) : otherwise;
  }

  bool flag(const char* key) {
    const json* value = find(key);
    if (value != nullptr && value->is_boolean()) return value->get<bool>();
    wrong(key, "true or false");
    return false;
  }
  bool flag_or(const char* key, bool otherwise) { return has(key) ? flag(key) : otherwise; }

  // The only value of this key that the program runs; absent is fine.
  void only(const char* key, const json& supported) {
    if (has(key) && *find(key) != supported)
      wrong(key, shown(supported) + ", nothing else is supported");
  }

  const json& object(const char* key) {
    static const json empty = json::object();
    const json* value = find(key);
    if (value != nullptr && value->is_object()) return *value;
    wrong(key, "an object");
    return empty;
  }

 private:
  const json& object_;
  std::string file_;
  std::string prefix_;
  std::optional<Error>& error_;
};

// Reads one configuration into a Config; `error_` holds the first thing that was wrong.
class Parser {
 public:
  Parser(const json& document, const std::string& file) : document_(document), file_(file) {
    config_.path = file;
  }

  Result<Config> parse() {
    const bool nested = document_.contains("text_config") && !document_["text_config"].is_null();
    Fields top(document_, file_, "", error_);
    const json& text_object = nested ? top.object("text_config") : document_;
    const std::string prefix = nested ? "text_config." : "";
    if (!error_) architecture(top, text_object);
    Fields text(text_object, file_, prefix, error_);
    const json& linear_object = error_ ? text_object : text.object("linear_attn_config");
    Fields linear(linear_object, file_, prefix + "linear_attn_config.", error_);
    if (!error_) kind(text, linear);
    if (!error_) sizes(text);
    if (!error_) kda(linear);
    if (!error_) layer_lists(linear);
    if (!error_) mla(text);
    if (!error_) feed_forward(text);
    if (!error_) quantization(top, text, prefix);
    if (!error_) ids(top, text);
    if (!error_ && top.has("vision_config")) vision(top);
    if (!error_) products();
    if (error_) return *error_;
    return std::move(config_);
  }

 private:
  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    if (!error_)
      error_ = invalid_argument("{}: {}", file_, fmt::format(format, std::forward<Args>(args)...));
  }

  // Names are too unsteady to tell the kinds apart, but another family's name means another family's model.
  void architecture(Fields& top, const json& text) {
    std::string names;
    bool ours = true;
    const auto see = [&](const json& value) {
      if (!value.is_string()) return;
      std::string name = value.get<std::string>();
      names += (names.empty() ? "" : ", ") + name;
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return std::tolower(c); });
      ours &= name.starts_with("kimi");
    };
    if (const json* list = top.find("architectures"); list != nullptr && list->is_array()) {
      for (const json& name : *list) see(name);
    }
    if (const json* type = top.find("model_type")) see(*type);
    if (ours && text.contains("linear_attn_config")) return;
    fail(
        "architectures and model_type say {}, {}; Kimi-Linear, Kimi K3 and Kimi K3.1 are supported",
        names.empty() ? "nothing" : names,
        ours ? "but linear_attn_config is missing" : "which is another family");
  }

  void kind(Fields& text, Fields& linear) {
    const std::pair<bool, std::string> marks[] = {
        {linear.has("gate_lower_bound"), linear.place("gate_lower_bound")},
        {text.has("attn_res_block_size"), text.place("attn_res_block_size")},
        {text.has("routed_expert_hidden_size"), text.place("routed_expert_hidden_size")}};
    std::string present, missing;
    for (const auto& [there, key] : marks) {
      std::string& list = there ? present : missing;
      list += (list.empty() ? "" : ", ") + key;
    }
    const bool indexed = text.has("index_topk");
    if (indexed) present += (present.empty() ? "" : ", ") + text.place("index_topk");
    if (!present.empty() && !missing.empty()) {
      fail("{} is missing although {} is there; Kimi K3 has all of these keys and Kimi-Linear none",
           missing, present);
      return;
    }
    config_.kind = present.empty() ? Kind::kKimiLinear : indexed ? Kind::kKimiK31 : Kind::kKimiK3;
  }

  bool is_k3() const { return config_.kind != Kind::kKimiLinear; }

  void sizes(Fields& text) {
    Config& c = config_;
    c.hidden = text.width("hidden_size");
    c.layers = text.integer("num_hidden_layers", 1, kLayersMax);
    c.vocab = text.integer("vocab_size", 2, kVocabMax);
    const bool other_name = !text.has("max_position_embeddings") && text.has("model_max_length");
    c.positions_max =
        text.integer(other_name ? "model_max_length" : "max_position_embeddings", 1, kPositionsMax);
    c.norm_eps = text.number("rms_norm_eps", 1e-12, 1);
    c.lora_norm_eps = text.number_or("mla_lora_norm_eps", 1e-12, 1, 1e-6);
    if (is_k3()) c.attn_res_block = text.integer("attn_res_block_size", 1, kLayersMax);
    const json* activation = text.find("hidden_act");
    if (activation != nullptr && *activation == "situ") {
      c.activation = Activation::kSitu;
      c.situ_beta = text.number("activation_situ_beta", 1e-3, 1e6);
      c.situ_linear_beta = text.number("activation_situ_linear_beta", 1e-3, 1e6);
    } else if (activation != nullptr && *activation == "silu") {
      c.activation = Activation::kSilu;
    } else {
      text.wrong("hidden_act", "\"situ\" or \"silu\"");
    }
  }

  void kda(Fields& linear) {
    Config& c = config_;
    c.kda_heads = linear.width("num_heads");
    c.kda_head_dim = linear.width("head_dim");
    c.conv_width = linear.integer("short_conv_kernel_size", 1, 16);
    if (is_k3()) c.gate_lower_bound = linear.number("gate_lower_bound", -80, -1e-6);
    c.full_rank_gate = linear.flag_or("use_full_rank_gate", is_k3());
  }

  // Each of the layers 1..L must stand in one of the two lists.
  void layer_lists(Fields& linear) {
    std::vector<const char*> owner(static_cast<size_t>(config_.layers), nullptr);
    config_.layer_kind.assign(owner.size(), LayerKind::kKda);
    for (const char* key : {"kda_layers", "full_attn_layers"}) {
      const json* list = linear.find(key);
      if (list == nullptr || !list->is_array())
        return linear.wrong(key, "a list of layer numbers, counted from 1");
      for (const json& item : *list) {
        const bool whole = item.is_number_unsigned() && item.get<uint64_t>() >= 1 &&
                           item.get<uint64_t>() <= static_cast<uint64_t>(config_.layers);
        if (!whole) {
          return fail("{} names {}, layers are counted from 1 to {}", linear.place(key),
                      shown(item), config_.layers);
        }
        const size_t layer = item.get<uint64_t>() - 1;
        if (owner[layer] != nullptr) {
          return fail("layer {} (counted from 1) stands in {} and again in {}", layer + 1,
                      linear.place(owner[layer]), linear.place(key));
        }
        owner[layer] = key;
        if (key[0] == 'f') config_.layer_kind[layer] = LayerKind::kMla;
      }
    }
    const auto gap = std::find(owner.begin(), owner.end(), nullptr);
    if (gap != owner.end()) {
      fail("layer {} (counted from 1) stands neither in {} nor in {}", gap - owner.begin() + 1,
           linear.place("kda_layers"), linear.place("full_attn_layers"));
    }
  }

  void mla(Fields& text) {
    Config& c = config_;
    c.heads = text.width("num_attention_heads");
    text.only("num_key_value_heads", c.heads);
    text.only("mla_use_nope", true);
    c.q_lora = text.integer_or("q_lora_rank", 1, kWidthMax, 0);
    c.kv_lora = text.width("kv_lora_rank");
    c.qk_nope = text.width("qk_nope_head_dim");
    c.qk_rope = text.width("qk_rope_head_dim");
    c.v_head = text.width("v_head_dim");
    c.mla_output_gate =
        is_k3() ? text.flag("mla_use_output_gate") : text.flag_or("mla_use_output_gate", false);
    if (c.kind != Kind::kKimiK31) return;
    c.index_topk = text.integer("index_topk", 1, kPositionsMax);
    c.index_heads = text.width("index_n_heads");
    c.index_dim = text.width("index_head_dim");
    if (c.q_lora == 0)
      text.wrong("q_lora_rank", "a whole number, because the indexer reads the query latent");
  }

  void feed_forward(Fields& text) {
    Config& c = config_;
    c.dense_width = text.width("intermediate_size");
    c.dense_layers = text.integer("first_k_dense_replace", 0, c.layers);
    text.only("moe_layer_freq", 1);
    text.only("num_expert_group", 1);
    text.only("topk_group", 1);
    text.only("moe_router_activation_func", "sigmoid");
    text.only("topk_method", "noaux_tc");
    c.experts = text.integer("num_experts", 1, kExpertsMax);
    c.active_experts = text.integer("num_experts_per_token", 1, c.experts);
    c.shared_experts = text.integer("num_shared_experts", 0, kExpertsMax);
    c.expert_width = text.width("moe_intermediate_size");
    c.renormalize = text.flag("moe_renormalize");
    c.routed_scale = text.number("routed_scaling_factor", 1e-6, 1e6);
    if (!is_k3()) return;
    c.expert_latent = text.width("routed_expert_hidden_size");
    c.latent_norm = text.flag("latent_moe_use_norm");
  }

  void quantization(Fields& top, Fields& text, const std::string& prefix) {
    const bool in_text = text.has("quantization_config");
    if (!in_text && !top.has("quantization_config")) return;
    Fields& owner = in_text ? text : top;
    Fields q(owner.object("quantization_config"), file_,
             (in_text ? prefix : "") + "quantization_config.", error_);
    if (error_) return;
    if (!q.has("quant_method") || *q.find("quant_method") != "compressed-tensors") {
      return q.wrong("quant_method",
                     "\"compressed-tensors\"; other quantisations are not supported");
    }
    if (!q.has("format") || *q.find("format") != "mxfp4-pack-quantized") {
      return q.wrong("format", "\"mxfp4-pack-quantized\"; other formats are not supported");
    }
    config_.packed_experts = true;
    if (config_.expert_input() % kMxfp4Group != 0 || config_.expert_width % kMxfp4Group != 0) {
      fail(
          "the experts' widths {} and {} must be multiples of {} in the format "
          "mxfp4-pack-quantized",
          config_.expert_input(), config_.expert_width, kMxfp4Group);
    }
  }

  int32_t token(Fields& fields, const char* key, const json& value) {
    if (value.is_number_unsigned() &&
        value.get<uint64_t>() < static_cast<uint64_t>(config_.vocab)) {
      return value.get<int32_t>();
    }
    fields.wrong(key, fmt::format("a token id from 0 to {}", config_.vocab - 1));
    return -1;
  }

  void ids(Fields& top, Fields& text) {
    const auto one = [&](const char* key) {
      Fields& owner = text.has(key) ? text : top;
      return owner.has(key) ? token(owner, key, *owner.find(key)) : -1;
    };
    config_.bos_id = one("bos_token_id");
    config_.pad_id = one("pad_token_id");
    stop_ids(text, "eos_token_id");
    stop_ids(top, "eos_token_id");
    if (!config_.stop_ids.empty()) config_.eos_id = config_.stop_ids.front();
    config_.tied_embeddings =
        (text.has("tie_word_embeddings") ? text : top).flag_or("tie_word_embeddings", false);
  }

  void vision(Fields& top) {
    Fields v(top.object("vision_config"), file_, "vision_config.", error_);
    VisionConfig t;
    t.patch = v.integer("patch_size", 1, 1024);
    t.width = v.width("vt_hidden_size");
    t.inner = v.width("vt_intermediate_size");
    t.layers = v.integer("vt_num_hidden_layers", 1, kLayersMax);
    t.qkv_width = v.width("qkv_hidden_size");
    t.grid_height = v.integer("init_pos_emb_height", 1, 4096);
    t.grid_width = v.integer("init_pos_emb_width", 1, 4096);
    t.text_width = v.width("text_hidden_size");
    const int64_t mm = v.integer("mm_hidden_size", 1, kWidthMax / 64);
    const json* merge = v.find("merge_kernel_size");
    const auto side = [](const json& n) {
      return n.is_number_unsigned() && n.get<uint64_t>() - 1 < 8;
    };
    if (merge == nullptr || !merge->is_array() || merge->size() != 2 || !side((*merge)[0]) ||
        !side((*merge)[1])) {
      return v.wrong("merge_kernel_size", "two whole numbers from 1 to 8");
    }
    t.merged = (*merge)[0].get<int64_t>() * (*merge)[1].get<int64_t>() * mm;
    config_.vision = t;
  }

  // Widths that are products of keys obey the bound of every other width.
  void products() {
    const Config& c = config_;
    const std::tuple<int64_t, int64_t, const char*> rows[] = {
        {c.kda_heads, c.kda_head_dim, "linear_attn_config.num_heads x head_dim"},
        {c.heads, c.qk_nope + c.qk_rope,
         "num_attention_heads x (qk_nope_head_dim + qk_rope_head_dim)"},
        {c.heads, c.qk_nope + c.v_head, "num_attention_heads x (qk_nope_head_dim + v_head_dim)"},
        {c.index_heads, c.index_dim, "index_n_heads x index_head_dim"},
        {c.shared_experts, c.expert_width, "num_shared_experts x moe_intermediate_size"}};
    for (const auto& [a, b, what] : rows) {
      if (a * b > kWidthMax) fail("{} is {}, at most {} is supported", what, a * b, kWidthMax);
    }
  }

 public:
  // Joins the ids of `key`, one number or a list of them, to the stop ids.
  void stop_ids(Fields& fields, const char* key) {
    const json* value = fields.find(key);
    if (value == nullptr) return;
    const auto join = [&](const json& item) {
      const int32_t id = token(fields, key, item);
      auto& ids = config_.stop_ids;
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    };
    if (!value->is_array()) return join(*value);
    for (const json& item : *value) join(item);
  }

  // generation_config.json beside the configuration.
  static Status join_generation(const json& document, const std::string& file, Config& config) {
    Parser parser(document, file);
    parser.config_ = std::move(config);
    Fields fields(document, file, "", parser.error_);
    parser.stop_ids(fields, "eos_token_id");
    config = std::move(parser.config_);
    if (parser.error_) return *parser.error_;
    if (config.eos_id < 0 && !config.stop_ids.empty()) config.eos_id = config.stop_ids.front();
    return {};
  }

 private:
  const json& document_;
  std::string file_;
  Config config_;
  std::optional<Error> error_;
};

Result<json> parse_object(const std::string& text, const std::string& name) {
  try {
    json document = json::parse(text);
    if (document.is_object()) return document;
    return invalid_argument("{} holds no JSON object", name);
  } catch (const json::exception& e) {
    const auto* parse = dynamic_cast<const json::parse_error*>(&e);
    return invalid_argument("{} is not JSON, reading failed at byte {}", name,
                            parse != nullptr ? parse->byte : 0);
  }
}

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kKimiLinear:
      return "Kimi-Linear";
    case Kind::kKimiK3:
      return "Kimi K3";
    case Kind::kKimiK31:
      return "Kimi K3.1";
  }
  return "?";
}

int64_t Config::count(LayerKind k) const {
  return std::count(layer_kind.begin(), layer_kind.end(), k);
}

Result<Config> parse_config(const std::string& text, const std::string& name) {
  const Result<json> document = parse_object(text, name);
  if (!document.ok()) return document.error();
  return Parser(*document, name).parse();
}

Result<Config> read_config(const std::string& path) {
  const bool is_file = path.ends_with(".json");
  const std::string file = is_file ? path : path + "/config.json";
  if (!file_exists(file))
    return not_found("{} does not exist; name a checkpoint folder or its config.json", file);
  const Result<std::string> text = read_file(file, kConfigBytesMax);
  if (!text.ok()) return text.error();
  Result<Config> config = parse_config(*text, file);
  const std::string generation = path + "/generation_config.json";
  if (!config.ok() || is_file || !file_exists(generation)) return config;
  const Result<std::string> generation_text = read_file(generation, kConfigBytesMax);
  if (!generation_text.ok()) return generation_text.error();
  const Result<json> document = parse_object(*generation_text, generation);
  if (!document.ok()) return document.error();
  if (Status s = Parser::join_generation(*document, generation, *config); !s.ok()) return s.error();
  return config;
}

}  // namespace perigee::model
