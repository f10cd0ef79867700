// What    Small random models of every kind, for tests of whole engines.
// Owner   engine tests.
// Threads Plain data.
// Errors  None.
#pragma once

#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace perigee::engine {

struct Shape {
  std::string name;
  std::string config;
  tensor::Device device = tensor::Device::kCpu;
};

// Small on purpose, with widths that are no multiple of a vector and a selection that is at work from token 24 on.
constexpr const char* kTestK31 = R"({"architectures":["KimiK3ForConditionalGeneration"],"model_type":"kimi_k3","text_config":{
      "model_type":"kimi_linear","hidden_size":72,"num_hidden_layers":5,"vocab_size":300,"intermediate_size":96,
      "num_attention_heads":3,"num_key_value_heads":3,"q_lora_rank":40,"kv_lora_rank":48,"qk_nope_head_dim":24,
      "qk_rope_head_dim":8,"v_head_dim":20,"mla_use_nope":true,"mla_use_output_gate":true,"hidden_act":"situ",
      "activation_situ_beta":4.0,"activation_situ_linear_beta":25.0,"attn_res_block_size":2,"rms_norm_eps":1e-5,
      "first_k_dense_replace":1,"moe_layer_freq":1,"num_experts":7,"num_experts_per_token":3,"num_shared_experts":1,
      "moe_intermediate_size":64,"routed_expert_hidden_size":32,"latent_moe_use_norm":true,
      "moe_router_activation_func":"sigmoid","moe_renormalize":true,"routed_scaling_factor":1.0,"num_expert_group":1,
      "topk_group":1,"topk_method":"noaux_tc","use_grouped_topk":true,"max_position_embeddings":4096,
      "num_nextn_predict_layers":0,"tie_word_embeddings":false,"bos_token_id":290,"eos_token_id":291,
      "pad_token_id":299,"index_topk":24,"index_n_heads":3,"index_head_dim":32,
      "linear_attn_config":{"num_heads":3,"head_dim":20,"short_conv_kernel_size":4,"use_full_rank_gate":true,
      "gate_lower_bound":-5.0,"full_attn_layers":[3,5],"kda_layers":[1,2,4]},
      "quantization_config":{"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized"}}})";

constexpr const char* kTestLinear = R"({"architectures":["KimiLinearForCausalLM"],"model_type":"kimi_linear","hidden_size":64,
      "num_hidden_layers":4,"vocab_size":200,"intermediate_size":80,"num_attention_heads":2,"num_key_value_heads":2,
      "q_lora_rank":null,"kv_lora_rank":32,"qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":16,
      "mla_use_nope":true,"hidden_act":"silu","rms_norm_eps":1e-5,"first_k_dense_replace":1,"moe_layer_freq":1,
      "num_experts":5,"num_experts_per_token":2,"num_shared_experts":1,"moe_intermediate_size":40,
      "moe_router_activation_func":"sigmoid","moe_renormalize":true,"routed_scaling_factor":2.446,
      "num_expert_group":1,"topk_group":1,"use_grouped_topk":true,"max_position_embeddings":4096,
      "tie_word_embeddings":false,"bos_token_id":190,"eos_token_id":191,"pad_token_id":199,
      "linear_attn_config":{"num_heads":2,"head_dim":24,"short_conv_kernel_size":4,"full_attn_layers":[2,4],
      "kda_layers":[1,3]}})";

// Without the text between `from` and `to`, or with it replaced.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  CHECK(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// All kinds on the CPU, then on the GPU, whose KDA heads are multiples of 16 wide; the wide one has the published width of index
// keys and latents that a GPU reads in pieces of 16 bytes.
inline std::vector<Shape> test_shapes() {
  const auto gpu = tensor::Device::kCuda;
  const std::string k31 = replaced(kTestK31, R"("num_heads":3,"head_dim":20)", R"("num_heads":3,"head_dim":32)");
  const std::string keys = replaced(k31, R"("index_n_heads":3,"index_head_dim":32)", R"("index_n_heads":4,"index_head_dim":128)");
  const std::string latents = replaced(keys, R"("kv_lora_rank":48)", R"("kv_lora_rank":64)");
  const std::string wide = replaced(latents, R"("qk_rope_head_dim":8)", R"("qk_rope_head_dim":16)");
  const std::string k3 = replaced(k31, R"("index_topk":24,"index_n_heads":3,"index_head_dim":32,)", "");
  const std::string linear = replaced(kTestLinear, R"("num_heads":2,"head_dim":24)", R"("num_heads":2,"head_dim":32)");
  return {{"k31", kTestK31},           {"linear", kTestLinear}, {"k31_gpu", k31, gpu},
          {"k31_wide_gpu", wide, gpu}, {"k3_gpu", k3, gpu},     {"linear_gpu", linear, gpu}};
}

}  // namespace perigee::engine
