"""Writes tests/golden/config/*.json: the published configurations, restated field by field.

    python tools/golden/make_config_golden.py

k3_config.json is Kimi K3; k31_config.json adds the indexer keys of K3.1; kimi_linear_config.json is
Kimi-Linear-48B-A3B. expected.json holds counts that `inspect` must print for them.
"""

import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tools.golden.specs import quantization  # noqa: E402
from tools.reference import config, shapes  # noqa: E402

OUT = os.path.join(ROOT, "tests", "golden", "config")


def layer_lists(layers, full):
  return {
      "full_attn_layers": full,
      "kda_layers": [i for i in range(1, layers + 1) if i not in full]
  }


def k3_text():
  linear = {
      "num_heads": 96,
      "head_dim": 128,
      "short_conv_kernel_size": 4,
      "use_full_rank_gate": True,
      "gate_lower_bound": -5.0,
      **layer_lists(93,
                    list(range(4, 93, 4)) + [93])
  }
  return {
      "model_type": "kimi_linear",
      "architectures": ["KimiLinearForCausalLM"],
      "auto_map": {
          "AutoConfig": "configuration_kimi_k3.KimiLinearConfig",
          "AutoModel": "modeling_kimi_linear.KimiLinearModel",
          "AutoModelForCausalLM": "modeling_kimi_linear.KimiLinearForCausalLM"
      },
      "transformers_version": "4.56.2",
      "hidden_size": 7168,
      "num_hidden_layers": 93,
      "intermediate_size": 33792,
      "first_k_dense_replace": 1,
      "num_attention_heads": 96,
      "num_key_value_heads": 96,
      "moe_layer_freq": 1,
      "q_lora_rank": 1536,
      "kv_lora_rank": 512,
      "num_experts": 896,
      "num_experts_per_token": 16,
      "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64,
      "v_head_dim": 128,
      "num_shared_experts": 2,
      "mla_use_nope": True,
      "mla_use_output_gate": True,
      "moe_intermediate_size": 3072,
      "hidden_act": "situ",
      "routed_expert_hidden_size": 3584,
      "activation_situ_beta": 4.0,
      "activation_situ_linear_beta": 25.0,
      "latent_moe_use_norm": True,
      "attn_res_block_size": 12,
      "moe_router_activation_func": "sigmoid",
      "rms_norm_eps": 1e-5,
      "topk_method": "noaux_tc",
      "max_position_embeddings": 1048576,
      "use_grouped_topk": True,
      "num_expert_group": 1,
      "topk_group": 1,
      "vocab_size": 163840,
      "moe_renormalize": True,
      "routed_scaling_factor": 1.0,
      "num_nextn_predict_layers": 0,
      "initializer_range": 0.02,
      "bos_token_id": 163584,
      "eos_token_id": 163586,
      "pad_token_id": 163839,
      "tie_word_embeddings": False,
      "use_cache": True,
      "dtype": "bfloat16",
      "linear_attn_config": linear,
      "quantization_config": quantization()
  }


def vision():
  return {
      "patch_size": 14,
      "vt_hidden_size": 1024,
      "vt_intermediate_size": 4096,
      "vt_num_hidden_layers": 27,
      "vt_num_attention_heads": 12,
      "qkv_hidden_size": 1536,
      "norm_type": "rmsnorm",
      "mlp_type": "mlp2",
      "activation_func": "gelu_pytorch_tanh",
      "attn_bias": False,
      "linear_bias": False,
      "patch_embed_proj_bias": False,
      "pos_emb_type": "divided_fixed",
      "init_pos_emb_height": 64,
      "init_pos_emb_width": 64,
      "init_pos_emb_time": 4,
      "pos_emb_interpolation_mode": "bilinear",
      "merge_kernel_size": [2, 2],
      "merge_type": "sd2_tpool",
      "mm_projector_type": "patchmergerv2",
      "mm_hidden_size": 1024,
      "projector_hidden_act": "gelu",
      "projector_ln_eps": 1e-5,
      "text_hidden_size": 7168,
      "_attn_implementation": "flash_attention_2"
  }


def k3():
  return {
      "architectures": ["KimiK3ForConditionalGeneration"],
      "model_type": "kimi_k3",
      "auto_map": {
          "AutoConfig": "configuration_kimi_k3.KimiK3Config",
          "AutoModel": "modeling_kimi_k3.KimiK3ForConditionalGeneration",
          "AutoModelForCausalLM": "modeling_kimi_k3.KimiK3ForConditionalGeneration"
      },
      "bos_token_id": 163584,
      "eos_token_id": 163586,
      "pad_token_id": 163839,
      "dtype": "bfloat16",
      "ignore_index": -100,
      "image_placeholder": "<|kimi_image_placeholder|>",
      "media_placeholder_token_id": 163605,
      "tie_word_embeddings": False,
      "text_config": k3_text(),
      "vision_config": vision()
  }


def k31():
  document = k3()
  document["text_config"].update(index_n_heads=32, index_head_dim=128, index_topk=2048)
  return document


def kimi_linear():
  return {
      "model_type": "kimi_linear",
      "architectures": ["KimiLinearForCausalLM"],
      "auto_map": {
          "AutoConfig": "configuration_kimi.KimiLinearConfig",
          "AutoModel": "modeling_kimi.KimiLinearModel",
          "AutoModelForCausalLM": "modeling_kimi.KimiLinearForCausalLM"
      },
      "hidden_size": 2304,
      "num_hidden_layers": 27,
      "intermediate_size": 9216,
      "head_dim": 72,
      "first_k_dense_replace": 1,
      "moe_layer_freq": 1,
      "num_attention_heads": 32,
      "num_key_value_heads": 32,
      "q_lora_rank": None,
      "kv_lora_rank": 512,
      "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64,
      "v_head_dim": 128,
      "mla_use_nope": True,
      "hidden_act": "silu",
      "num_experts": 256,
      "num_experts_per_token": 8,
      "num_shared_experts": 1,
      "moe_intermediate_size": 1024,
      "moe_router_activation_func": "sigmoid",
      "use_grouped_topk": True,
      "num_expert_group": 1,
      "topk_group": 1,
      "moe_renormalize": True,
      "routed_scaling_factor": 2.446,
      "rms_norm_eps": 1e-5,
      "rope_theta": 10000.0,
      "rope_scaling": None,
      "vocab_size": 163840,
      "model_max_length": 1048576,
      "num_nextn_predict_layers": 0,
      "initializer_range": 0.02,
      "bos_token_id": 163584,
      "eos_token_id": 163586,
      "pad_token_id": 163839,
      "tie_word_embeddings": False,
      "use_cache": True,
      "dtype": "bfloat16",
      "linear_attn_config": {
          "num_heads": 32,
          "head_dim": 128,
          "short_conv_kernel_size": 4,
          **layer_lists(27, [4, 8, 12, 16, 20, 24, 27])
      }
  }


def expected(document):
  c = config.parse_config(document)
  total, active = shapes.count(c)
  row = {
      "kind": c.kind,
      "layers": c.layers,
      "kda_layers": c.layers - len(c.full_attn),
      "mla_layers": len(c.full_attn),
      "text_parameters": total,
      "active_parameters": active,
      "text_tensors": sum(1 for _ in shapes.text_tensors(c))
  }
  if "vision_config" in document:
    rows = list(shapes.vision_tensors(document["vision_config"]))
    row["vision_parameters"] = sum(r.params for r in rows)
    row["vision_tensors"] = len(rows)
    row["tensors"] = row["text_tensors"] + row["vision_tensors"]
    row["parameters"] = total + row["vision_parameters"]
  mla = len(c.full_attn)
  latent, extra = c.kv_lora, c.rope
  row["latent_bytes_per_token"] = {
      "bf16": mla * 2 * (latent + extra),
      "fp8": mla * (latent + extra),
      "nvfp4": mla * (latent // 2 + extra + latent // 16)
  }
  if c.index_topk:
    j = c.index_dim
    row["key_bytes_per_token"] = {
        "bf16": mla * 2 * j,
        "fp8": mla * (j + 4),
        "mxfp4": mla * (j // 2 + j // 32)
    }
  return row


def main():
  documents = {"k3_config": k3(), "k31_config": k31(), "kimi_linear_config": kimi_linear()}
  rows = {}
  for name, document in documents.items():
    with open(os.path.join(OUT, name + ".json"), "w", encoding="utf-8") as file:
      json.dump(document, file, indent=2)
      file.write("\n")
    rows[name] = expected(document)
  with open(os.path.join(OUT, "expected.json"), "w", encoding="utf-8") as file:
    json.dump(rows, file, indent=2)
    file.write("\n")


if __name__ == "__main__":
  main()
