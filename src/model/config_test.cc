#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "load/test_files.h"

namespace perigee::model {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kGolden = std::string(PERIGEE_SOURCE_DIR) + "/tests/golden/config/";

json golden(const std::string& name) {
  const Result<std::string> text = read_file(kGolden + name + ".json");
  CHECK(text.ok());
  return json::parse(*text);
}

// The sentence that a configuration is refused with.
std::string refusal(const json& document) {
  const Result<Config> config = parse_config(document.dump(), "some/config.json");
  if (config.ok()) return "it is accepted";
  EXPECT_THAT(config.error().message, HasSubstr("some/config.json"));
  return config.error().message;
}

TEST(Config, ReadsKimiK3) {
  const Result<Config> read = read_config(kGolden + "k3_config.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  const Config& c = *read;
  EXPECT_EQ(c.kind, Kind::kKimiK3);
  EXPECT_EQ(c.hidden, 7168);
  EXPECT_EQ(c.layers, 93);
  EXPECT_EQ(c.vocab, 163840);
  EXPECT_EQ(c.positions_max, 1048576);
  EXPECT_EQ(c.norm_eps, 1e-5);
  EXPECT_EQ(c.lora_norm_eps, 1e-6);
  EXPECT_EQ(c.count(LayerKind::kKda), 69);
  EXPECT_EQ(c.count(LayerKind::kMla), 24);
  EXPECT_EQ(c.layer_kind[3], LayerKind::kMla);  // the lists count from 1
  EXPECT_EQ(c.layer_kind[91], LayerKind::kMla);
  EXPECT_EQ(c.layer_kind[92], LayerKind::kMla);
  EXPECT_EQ(c.layer_kind[90], LayerKind::kKda);
  EXPECT_EQ(c.bos_id, 163584);
  EXPECT_EQ(c.eos_id, 163586);
  EXPECT_EQ(c.pad_id, 163839);
  EXPECT_EQ(c.stop_ids, std::vector<int32_t>{163586});
  EXPECT_EQ(c.activation, Activation::kSitu);
  EXPECT_EQ(c.situ_beta, 4.0);
  EXPECT_EQ(c.situ_linear_beta, 25.0);
  EXPECT_EQ(c.kda_width(), 12288);
  EXPECT_EQ(c.conv_width, 4);
  EXPECT_EQ(c.gate_lower_bound, -5.0);
  EXPECT_TRUE(c.full_rank_gate);
  EXPECT_EQ(c.heads, 96);
  EXPECT_EQ(c.q_lora, 1536);
  EXPECT_EQ(c.kv_lora, 512);
  EXPECT_EQ(c.qk_nope, 128);
  EXPECT_EQ(c.qk_rope, 64);
  EXPECT_EQ(c.v_head, 128);
  EXPECT_TRUE(c.mla_output_gate);
  EXPECT_EQ(c.index_topk, 0);
  EXPECT_EQ(c.dense_width, 33792);
  EXPECT_EQ(c.dense_layers, 1);
  EXPECT_EQ(c.experts, 896);
  EXPECT_EQ(c.active_experts, 16);
  EXPECT_EQ(c.expert_width, 3072);
  EXPECT_EQ(c.shared_width(), 6144);
  EXPECT_EQ(c.expert_input(), 3584);
  EXPECT_TRUE(c.latent_norm);
  EXPECT_TRUE(c.renormalize);
  EXPECT_EQ(c.routed_scale, 1.0);
  EXPECT_TRUE(c.packed_experts);
  EXPECT_EQ(c.attn_res_block, 12);
  ASSERT_TRUE(c.has_vision());
  EXPECT_EQ(c.vision->merged, 4096);
  EXPECT_FALSE(c.tied_embeddings);
}

TEST(Config, ReadsKimiK31) {
  const Result<Config> read = read_config(kGolden + "k31_config.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->kind, Kind::kKimiK31);
  EXPECT_EQ(read->index_topk, 2048);
  EXPECT_EQ(read->index_heads, 32);
  EXPECT_EQ(read->index_dim, 128);
}

TEST(Config, ReadsKimiLinear) {
  const Result<Config> read = read_config(kGolden + "kimi_linear_config.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->kind, Kind::kKimiLinear);
  EXPECT_EQ(read->q_lora, 0);
  EXPECT_EQ(read->positions_max, 1048576);  // model_max_length
  EXPECT_EQ(read->activation, Activation::kSilu);
  EXPECT_FALSE(read->gate_lower_bound.has_value());
  EXPECT_FALSE(read->full_rank_gate);
  EXPECT_FALSE(read->mla_output_gate);
  EXPECT_EQ(read->expert_latent, 0);
  EXPECT_EQ(read->expert_input(), 2304);
  EXPECT_EQ(read->attn_res_block, 0);
  EXPECT_EQ(read->routed_scale, 2.446);
  EXPECT_FALSE(read->packed_experts);
  EXPECT_FALSE(read->has_vision());
}

TEST(Config, ReadsEverySpecOfTheGoldenModels) {
  const json specs =
      json::parse(*read_file(std::string(PERIGEE_SOURCE_DIR) + "/tests/golden/model/specs.json"));
  for (const json& spec : specs["specs"]) {
    const Result<Config> config = parse_config(spec["config"].dump(), spec["name"]);
    ASSERT_TRUE(config.ok()) << config.error().message;
    const Kind kind = spec["kind"] == "k31"  ? Kind::kKimiK31
                      : spec["kind"] == "k3" ? Kind::kKimiK3
                                             : Kind::kKimiLinear;
    EXPECT_EQ(config->kind, kind) << spec["name"];
  }
}

TEST(Config, FlatAndNestedAreTheSame) {
  json flat = golden("k3_config")["text_config"];
  const Result<Config> config = parse_config(flat.dump(), "flat");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->kind, Kind::kKimiK3);
  EXPECT_EQ(config->hidden, 7168);
  EXPECT_FALSE(config->has_vision());
  flat["mla_lora_norm_eps"] = 1e-5;
  EXPECT_EQ(parse_config(flat.dump(), "flat")->lora_norm_eps, 1e-5);
}

TEST(Config, KindsAreToldApartByKeys) {
  json named = golden("k3_config");
  named["architectures"] = {"KimiSomethingElse"};
  named["model_type"] = "kimi_other";
  EXPECT_EQ(parse_config(named.dump(), "named")->kind, Kind::kKimiK3);
  for (const char* key : {"attn_res_block_size", "routed_expert_hidden_size"}) {
    json partial = golden("k3_config");
    partial["text_config"].erase(key);
    EXPECT_THAT(refusal(partial),
                HasSubstr(std::string("text_config.") + key + " is missing although"));
    partial["text_config"][key] = nullptr;
    EXPECT_THAT(refusal(partial),
                HasSubstr(std::string("text_config.") + key + " is missing although"));
  }
  json partial = golden("k3_config");
  partial["text_config"]["linear_attn_config"].erase("gate_lower_bound");
  EXPECT_THAT(refusal(partial),
              HasSubstr("text_config.linear_attn_config.gate_lower_bound is missing although"));
  json indexed = golden("kimi_linear_config");
  indexed["index_topk"] = 16;
  EXPECT_THAT(refusal(indexed),
              AllOf(HasSubstr("attn_res_block_size"), HasSubstr("although index_topk is there")));
}

TEST(Config, RefusesOtherFamilies) {
  EXPECT_THAT(refusal({{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}}),
              AllOf(HasSubstr("LlamaForCausalLM, llama"), HasSubstr("architectures and model_type"),
                    HasSubstr("Kimi K3.1")));
  json other = golden("kimi_linear_config");
  other["architectures"] = {"LlamaForCausalLM"};
  EXPECT_THAT(refusal(other), HasSubstr("LlamaForCausalLM"));
  EXPECT_THAT(refusal({{"model_type", "kimi_k2"}}),
              AllOf(HasSubstr("kimi_k2"), HasSubstr("linear_attn_config is missing")));
  EXPECT_THAT(refusal(json::object()), HasSubstr("say nothing"));
}

// Every key that the forward pass needs: without it, and with a wrong type, the sentence names it.
TEST(Config, NamesEachMissingOrWrongKey) {
  const std::vector<std::string> needed = {"hidden_size",
                                           "num_hidden_layers",
                                           "vocab_size",
                                           "max_position_embeddings",
                                           "rms_norm_eps",
                                           "hidden_act",
                                           "activation_situ_beta",
                                           "activation_situ_linear_beta",
                                           "num_attention_heads",
                                           "kv_lora_rank",
                                           "qk_nope_head_dim",
                                           "qk_rope_head_dim",
                                           "v_head_dim",
                                           "mla_use_output_gate",
                                           "index_n_heads",
                                           "index_head_dim",
                                           "intermediate_size",
                                           "first_k_dense_replace",
                                           "num_experts",
                                           "num_experts_per_token",
                                           "num_shared_experts",
                                           "moe_intermediate_size",
                                           "moe_renormalize",
                                           "routed_scaling_factor",
                                           "latent_moe_use_norm",
                                           "linear_attn_config/num_heads",
                                           "linear_attn_config/head_dim",
                                           "linear_attn_config/short_conv_kernel_size",
                                           "linear_attn_config/kda_layers",
                                           "linear_attn_config/full_attn_layers"};
  for (const std::string& key : needed) {
    const json::json_pointer at("/text_config/" + key);
    std::string name = "text_config." + key;
    std::replace(name.begin(), name.end(), '/', '.');
    json document = golden("k31_config");
    ASSERT_TRUE(document.contains(at)) << key;
    document[at] = nullptr;
    EXPECT_THAT(refusal(document), HasSubstr(name)) << key;
    document[at] = "many";
    EXPECT_THAT(refusal(document), AllOf(HasSubstr(name), HasSubstr("must be"))) << key;
    if (key.find("layers") == std::string::npos || key == "num_hidden_layers") {
      document[at] = -3;
      EXPECT_THAT(refusal(document), AllOf(HasSubstr(name + " is -3"), HasSubstr("must be")))
          << key;
    }
  }
}

TEST(Config, RefusesValuesOutOfRange) {
  const auto with = [](const char* key, const json& value) {
    json document = golden("k31_config");
    document[json::json_pointer(std::string("/text_config/") + key)] = value;
    return refusal(document);
  };
  EXPECT_THAT(with("hidden_size", 0), HasSubstr("text_config.hidden_size is 0"));
  EXPECT_THAT(with("hidden_size", 1e300), HasSubstr("text_config.hidden_size is 1e+300"));
  EXPECT_THAT(with("hidden_size", 18446744073709551615u),
              HasSubstr("hidden_size is 18446744073709551615"));
  EXPECT_THAT(with("num_experts_per_token", 897), HasSubstr("from 1 to 896"));
  EXPECT_THAT(with("first_k_dense_replace", 94), HasSubstr("from 0 to 93"));
  EXPECT_THAT(with("eos_token_id", 163840), HasSubstr("text_config.eos_token_id is 163840"));
  EXPECT_THAT(with("bos_token_id", json::array({1})), HasSubstr("text_config.bos_token_id"));
  EXPECT_THAT(with("num_attention_heads", 262144), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(with("v_head_dim", 131072), HasSubstr("v_head_dim) is"));
  EXPECT_THAT(with("moe_layer_freq", 2), HasSubstr("moe_layer_freq is 2"));
  EXPECT_THAT(with("num_expert_group", 8), HasSubstr("num_expert_group"));
  EXPECT_THAT(with("mla_use_nope", false), HasSubstr("mla_use_nope"));
  EXPECT_THAT(with("moe_router_activation_func", "softmax"),
              HasSubstr("moe_router_activation_func"));
  EXPECT_THAT(with("q_lora_rank", nullptr), HasSubstr("q_lora_rank"));
  EXPECT_THAT(with("hidden_act", "gelu"), HasSubstr("hidden_act is \"gelu\""));
  EXPECT_THAT(with("linear_attn_config/gate_lower_bound", 5), HasSubstr("gate_lower_bound is 5"));
  EXPECT_THAT(with("linear_attn_config", 5), HasSubstr("linear_attn_config is 5"));
  EXPECT_THAT(with("quantization_config", {{"quant_method", "fp8"}}),
              HasSubstr("quantization_config.quant_method is \"fp8\""));
  EXPECT_THAT(with("quantization_config/format", "int-quantized"),
              HasSubstr("quantization_config.format"));
  EXPECT_THAT(with("moe_intermediate_size", 3080), HasSubstr("multiples of 32"));
  json vision = golden("k31_config");
  vision["vision_config"]["merge_kernel_size"] = {2, 2, 2};
  EXPECT_THAT(refusal(vision), HasSubstr("vision_config.merge_kernel_size"));
  vision["vision_config"].erase("patch_size");
  EXPECT_THAT(refusal(vision), HasSubstr("vision_config.patch_size is missing"));
}

TEST(Config, LayerListsCoverEachLayerOnce) {
  const auto with = [](const json& kda, const json& full) {
    json document = golden("kimi_linear_config");
    document["num_hidden_layers"] = 3;
    document["linear_attn_config"]["kda_layers"] = kda;
    document["linear_attn_config"]["full_attn_layers"] = full;
    return refusal(document);
  };
  EXPECT_EQ(with({1, 2}, {3}), "it is accepted");
  EXPECT_EQ(with(json::array(), {1, 2, 3}), "it is accepted");
  EXPECT_THAT(with({1}, {3}), HasSubstr("layer 2 (counted from 1) stands neither"));
  EXPECT_THAT(
      with({1, 2}, {2, 3}),
      HasSubstr("layer 2 (counted from 1) stands in linear_attn_config.kda_layers and again"));
  EXPECT_THAT(with({1, 2, 2}, {3}), HasSubstr("layer 2 (counted from 1)"));
  EXPECT_THAT(with({0, 1, 2}, {3}), HasSubstr("names 0, layers are counted from 1 to 3"));
  EXPECT_THAT(with({1, 2}, {3, 4}), HasSubstr("names 4"));
  EXPECT_THAT(with({1, 2}, {"3"}), HasSubstr("names \"3\""));
}

TEST(Config, RefusesWhatIsNoJson) {
  EXPECT_THAT(parse_config("{\"a\":", "x.json").error().message,
              AllOf(HasSubstr("x.json"), HasSubstr("not JSON")));
  EXPECT_THAT(parse_config("[1]", "x.json").error().message, HasSubstr("no JSON object"));
  EXPECT_THAT(parse_config("", "x.json").error().message, HasSubstr("x.json"));
  EXPECT_THAT(read_config("/no/such/folder").error().message,
              HasSubstr("/no/such/folder/config.json does not exist"));
}

TEST(Config, JoinsTheStopIdsOfBothFiles) {
  const load::TempFolder folder;
  json document = golden("kimi_linear_config");
  document["eos_token_id"] = {7, 8};
  folder.write("config.json", document.dump());
  EXPECT_EQ(read_config(folder.path())->stop_ids, (std::vector<int32_t>{7, 8}));
  folder.write("generation_config.json", R"({"eos_token_id":[8,9]})");
  const Result<Config> config = read_config(folder.path());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->stop_ids, (std::vector<int32_t>{7, 8, 9}));
  EXPECT_EQ(config->eos_id, 7);
  folder.write("generation_config.json", R"({"eos_token_id":"end"})");
  EXPECT_THAT(
      read_config(folder.path()).error().message,
      AllOf(HasSubstr("generation_config.json: eos_token_id is \"end\""), HasSubstr("token id")));
  folder.write("generation_config.json", "no JSON");
  EXPECT_THAT(read_config(folder.path()).error().message,
              HasSubstr("generation_config.json is not JSON"));
}

}  // namespace
}  // namespace perigee::model
