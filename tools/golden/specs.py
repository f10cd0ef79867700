"""The tiny models of the golden tests: about thirty shapes, each odd in some way of its own.

    python tools/golden/specs.py        # writes tests/golden/model/specs.json

tools/reference/checkpoint.py turns a spec of that file into a checkpoint folder with NumPy alone.
"""

import json
import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(ROOT, "tests", "golden", "model", "specs.json")
K3_CLASS = "KimiK3ForConditionalGeneration"


def quantization():
  weights = {
      "num_bits": 4,
      "type": "float",
      "strategy": "group",
      "group_size": 32,
      "symmetric": True,
      "dynamic": False,
      "observer": "minmax",
      "scale_dtype": "torch.uint8",
      "zp_dtype": None
  }
  group = {
      "format": "mxfp4-pack-quantized",
      "targets": ["Linear"],
      "input_activations": None,
      "output_activations": None,
      "weights": weights
  }
  ignore = [
      r"re:.*self_attn.*", r"re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
      r"re:.*lm_head.*", r"re:.*vision_tower.*", r"re:.*mm_projector.*"
  ]
  return {
      "quant_method": "compressed-tensors",
      "format": "mxfp4-pack-quantized",
      "quantization_status": "compressed",
      "kv_cache_scheme": None,
      "config_groups": {
          "group_0": group
      },
      "ignore": ignore
  }


# What every tiny model starts from; a spec names what it changes. `kda` is (heads, width), `mla` is
# (heads, nope, rope, v), `full` counts layers from 1 as config.json does.
BASE = dict(hidden=64,
            layers=4,
            vocab=131,
            dense=96,
            kda=(2, 32),
            mla=(2, 24, 8, 20),
            q_lora=40,
            kv_lora=48,
            full=(4,),
            block=2,
            first_dense=1,
            experts=7,
            top=3,
            shared=2,
            expert_width=32,
            routed=32,
            scale=1.0,
            renormalize=True,
            eps=1e-5,
            lora_eps=None,
            index=None,
            tokens=70,
            a_log=128,
            prefix="language_model.",
            nested=True,
            shards=1)


def text_config(kind, s):
  heads, nope, rope, v_dim = s["mla"]
  linear = {
      "num_heads": s["kda"][0],
      "head_dim": s["kda"][1],
      "short_conv_kernel_size": 4,
      "full_attn_layers": list(s["full"]),
      "kda_layers": [i for i in range(1, s["layers"] + 1) if i not in s["full"]]
  }
  text = {
      "model_type": "kimi_linear",
      "architectures": ["KimiLinearForCausalLM"],
      "hidden_size": s["hidden"],
      "num_hidden_layers": s["layers"],
      "vocab_size": s["vocab"],
      "intermediate_size": s["dense"],
      "num_attention_heads": heads,
      "num_key_value_heads": heads,
      "q_lora_rank": s["q_lora"],
      "kv_lora_rank": s["kv_lora"],
      "qk_nope_head_dim": nope,
      "qk_rope_head_dim": rope,
      "v_head_dim": v_dim,
      "mla_use_nope": True,
      "hidden_act": "silu",
      "rms_norm_eps": s["eps"],
      "first_k_dense_replace": s["first_dense"],
      "moe_layer_freq": 1,
      "num_experts": s["experts"],
      "num_experts_per_token": s["top"],
      "num_shared_experts": s["shared"],
      "moe_intermediate_size": s["expert_width"],
      "moe_router_activation_func": "sigmoid",
      "use_grouped_topk": True,
      "num_expert_group": 1,
      "topk_group": 1,
      "moe_renormalize": s["renormalize"],
      "routed_scaling_factor": s["scale"],
      "max_position_embeddings": 4096,
      "num_nextn_predict_layers": 0,
      "tie_word_embeddings": False,
      "use_cache": True,
      "initializer_range": 0.02,
      "bos_token_id": s["vocab"] - 3,
      "eos_token_id": s["vocab"] - 2,
      "pad_token_id": s["vocab"] - 1,
      "dtype": "bfloat16",
      "linear_attn_config": linear
  }
  if s["lora_eps"] is not None:
    text["mla_lora_norm_eps"] = s["lora_eps"]
  if kind != "kimi_linear":
    linear.update(use_full_rank_gate=True, gate_lower_bound=-5.0)
    text.update(hidden_act="situ",
                activation_situ_beta=4.0,
                activation_situ_linear_beta=25.0,
                mla_use_output_gate=True,
                attn_res_block_size=s["block"],
                topk_method="noaux_tc",
                routed_expert_hidden_size=s["routed"],
                latent_moe_use_norm=True,
                quantization_config=quantization())
  if kind == "k31":
    index_heads, index_dim, index_topk = s["index"]
    text.update(index_n_heads=index_heads, index_head_dim=index_dim, index_topk=index_topk)
  return text


def make(name, kind, seed, selected=False, **changes):
  unknown = set(changes) - set(BASE)
  if unknown:
    raise KeyError(f"{name}: unknown fields {unknown}")
  s = {**BASE, **changes}
  text = text_config(kind, s)
  document = text
  if s["nested"]:
    document = {
        "architectures": text["architectures"] if kind == "kimi_linear" else [K3_CLASS],
        "model_type": "kimi_linear" if kind == "kimi_linear" else "kimi_k3",
        "bos_token_id": text["bos_token_id"],
        "eos_token_id": text["eos_token_id"],
        "pad_token_id": text["pad_token_id"],
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "text_config": text
    }
  return {
      "name": name,
      "kind": kind,
      "seed": seed,
      "tokens": s["tokens"],
      "prefix": s["prefix"],
      "shards": s["shards"],
      "a_log_size": s["a_log"],
      "selected": selected,
      "config": document
  }


def linear(name, seed, **changes):
  """Kimi-Linear: flat config, no prefix, q_proj, BF16 experts."""
  fields = {"q_lora": None, "nested": False, "prefix": "", "shared": 1, "scale": 2.446, **changes}
  return make(name, "kimi_linear", seed, **fields)


def specs():
  k31 = lambda name, seed, index, **changes: make(name, "k31", seed, index=index, **changes)
  k3 = lambda name, seed, **changes: make(name, "k3", seed, **changes)
  return [
      # K3.1; index = (heads, width, top-k)
      k31("k31_base", 1, (2, 32, 16), selected=True),
      k31("k31_one_index_head", 2, (1, 32, 24), selected=True, tokens=90, full=(2, 4)),
      k31("k31_32_index_heads", 3, (32, 16, 12), tokens=60),
      k31("k31_topk_above_context", 4, (4, 32, 512), tokens=64),
      k31("k31_topk_1", 5, (3, 24, 1), tokens=40),
      k31("k31_hidden_40",
          6, (2, 64, 20),
          hidden=40,
          kda=(3, 16),
          mla=(1, 16, 4, 12),
          q_lora=24,
          kv_lora=16,
          dense=56),
      k31("k31_hidden_72",
          7, (5, 48, 33),
          hidden=72,
          kda=(1, 40),
          mla=(3, 20, 12, 28),
          kv_lora=64,
          tokens=100),
      k31("k31_hidden_100",
          8, (4, 96, 17),
          hidden=100,
          kda=(2, 96),
          mla=(5, 12, 4, 9),
          q_lora=36,
          kv_lora=80,
          experts=13,
          top=5,
          selected=True),
      k31("k31_block_1", 9, (2, 32, 16), block=1, layers=5, full=(3,)),
      k31("k31_block_3_of_5", 10, (2, 32, 16), block=3, layers=5, full=(3, 5)),
      k31("k31_block_above_depth", 11, (2, 32, 16), block=12, layers=3, full=(3,)),
      k31("k31_mla_first_two", 12, (2, 32, 19), full=(1, 2), tokens=80),
      k31("k31_mla_last_two", 13, (6, 32, 19), layers=5, full=(4, 5), block=4, tokens=80),
      k31("k31_no_dense", 14, (2, 32, 16), first_dense=0),
      k31("k31_two_dense", 15, (2, 32, 16), first_dense=2, layers=5, dense=84),
      k31("k31_shared_1", 16, (2, 32, 16), shared=1, experts=5, top=2),
      k31("k31_shared_3", 17, (2, 32, 16), shared=3, experts=11, top=4, expert_width=64, routed=96),
      k31("k31_scaled", 18, (2, 32, 16), scale=1.7, renormalize=False, lora_eps=1e-5),
      k31("k31_all_experts", 19, (2, 32, 16), experts=3, top=3, scale=0.6, lora_eps=1e-3),
      k31("k31_sharded_bare", 20, (2, 32, 16), shards=3, prefix=""),
      k31("k31_flat", 21, (2, 32, 16), nested=False, prefix="", a_log=7, eps=1e-3),
      k31("k31_flat_prefixed", 22, (3, 32, 21), nested=False, shards=2, kda=(5, 24), a_log=5),
      k31("k31_long",
          23, (4, 64, 48),
          tokens=200,
          layers=5,
          full=(2, 4, 5),
          kda=(2, 48),
          kv_lora=64),
      k31("k31_all_mla", 24, (2, 32, 16), layers=3, full=(1, 2, 3)),
      # K3: no indexer
      k3("k3_base", 31, tokens=50),
      k3("k3_wide_heads",
         32,
         kda=(2, 80),
         mla=(4, 40, 24, 36),
         kv_lora=112,
         q_lora=72,
         tokens=66,
         full=(3, 4)),
      k3("k3_all_kda_but_one", 33, layers=6, full=(6,), block=4, shards=4, tokens=120, vocab=257),
      k3("k3_short", 34, tokens=20, kda=(3, 20), hidden=56, block=1, full=(1,), lora_eps=1e-5),
      # Kimi-Linear
      linear("linear_base", 41),
      linear("linear_hidden_52",
             42,
             hidden=52,
             kda=(3, 24),
             mla=(3, 18, 6, 10),
             kv_lora=20,
             experts=5,
             top=2,
             tokens=130),
      linear("linear_no_dense",
             43,
             first_dense=0,
             layers=3,
             full=(1,),
             renormalize=False,
             scale=1.3,
             shards=2),
      linear("linear_nested",
             44,
             nested=True,
             prefix="language_model.",
             layers=5,
             full=(4, 5),
             shared=2,
             expert_width=20),
      linear("linear_q_lora", 45, q_lora=28, kda=(1, 64), tokens=33, lora_eps=1e-5),
  ]


def main():
  rows = specs()
  names = [row["name"] for row in rows]
  assert len(set(names)) == len(names)
  with open(OUT, "w", encoding="utf-8") as file:
    json.dump({"specs": rows}, file, separators=(",", ":"))
    file.write("\n")
  print(f"{len(rows)} specs to {os.path.relpath(OUT, ROOT)}")


if __name__ == "__main__":
  main()
