"""What config.json says about the text model, read into one object.

Plain Python, no NumPy: the shape table and the checkpoint writer use it too.
"""

from dataclasses import dataclass, field
import json
import os

K3_KEYS = ("attn_res_block_size", "routed_expert_hidden_size")


class ConfigError(ValueError):
  """A config.json that no model kind fits."""


@dataclass
class Config:
  kind: str  # "k3", "k31" or "kimi_linear"
  hidden: int
  layers: int
  vocab: int
  dense_width: int
  heads: int
  q_lora: int  # 0: q_proj straight from the hidden state
  kv_lora: int
  nope: int
  rope: int  # the extra head-shared dims; never rotated
  v_dim: int
  mla_output_gate: bool
  kda_heads: int
  kda_dim: int
  conv_kernel: int
  gate_lower_bound: float  # 0: softplus decay
  full_rank_gate: bool
  full_attn: frozenset  # 0-based layers
  activation: str
  situ_beta: float
  situ_linear_beta: float
  attn_res_block: int  # 0: plain residual stream
  first_dense: int
  moe_freq: int
  experts: int
  experts_per_token: int
  shared_experts: int
  expert_width: int
  routed_hidden: int  # width at which the routed experts work
  latent_moe: bool
  latent_norm: bool
  renormalize: bool
  routed_scale: float
  eps: float
  lora_eps: float
  index_topk: int  # 0: no indexer
  index_heads: int
  index_dim: int
  raw: dict = field(default_factory=dict, repr=False)

  def is_kda(self, layer):
    return layer not in self.full_attn

  def is_dense(self, layer):
    return layer < self.first_dense or layer % self.moe_freq != 0

  @property
  def kda_width(self):
    return self.kda_heads * self.kda_dim


def model_kind(text, linear):
  """Tells the kinds apart by keys, never by a name: the siblings share their type strings."""
  marks = [key in text and text[key] is not None for key in K3_KEYS]
  marks.append(linear.get("gate_lower_bound") is not None)
  indexed = text.get("index_topk") is not None
  if all(marks):
    return "k31" if indexed else "k3"
  if not any(marks) and not indexed:
    return "kimi_linear"
  raise ConfigError("config.json mixes keys of Kimi K3 and Kimi-Linear: gate_lower_bound, "
                    "attn_res_block_size and routed_expert_hidden_size must all be there or none")


def parse_config(document):
  """Takes the parsed config.json, with a nested text_config or flat."""
  text = document.get("text_config", document)
  linear = text["linear_attn_config"]
  kind = model_kind(text, linear)
  layers = text["num_hidden_layers"]
  full = frozenset(number - 1 for number in linear["full_attn_layers"])  # the lists count from 1
  kda = frozenset(number - 1 for number in linear["kda_layers"])
  if full & kda or full | kda != frozenset(range(layers)):
    raise ConfigError("linear_attn_config: full_attn_layers and kda_layers must together name each "
                      f"of the layers 1..{layers} once")
  is_k3 = kind != "kimi_linear"
  if text.get("tie_word_embeddings", False):
    raise ConfigError("tie_word_embeddings true is not a published shape of these models")
  if text.get("num_expert_group", 1) != 1:
    raise ConfigError("num_expert_group above 1 is not a published shape of these models")
  return Config(
      kind=kind,
      hidden=text["hidden_size"],
      layers=layers,
      vocab=text["vocab_size"],
      dense_width=text["intermediate_size"],
      heads=text["num_attention_heads"],
      q_lora=text.get("q_lora_rank") or 0,
      kv_lora=text["kv_lora_rank"],
      nope=text["qk_nope_head_dim"],
      rope=text["qk_rope_head_dim"],
      v_dim=text["v_head_dim"],
      mla_output_gate=text.get("mla_use_output_gate", False),
      kda_heads=linear["num_heads"],
      kda_dim=linear["head_dim"],
      conv_kernel=linear["short_conv_kernel_size"],
      gate_lower_bound=linear.get("gate_lower_bound") or 0.0,
      full_rank_gate=linear.get("use_full_rank_gate", is_k3),
      full_attn=full,
      activation=text["hidden_act"],
      situ_beta=text.get("activation_situ_beta", 0.0),
      situ_linear_beta=text.get("activation_situ_linear_beta", 0.0),
      attn_res_block=text.get("attn_res_block_size") or 0,
      first_dense=text["first_k_dense_replace"],
      moe_freq=text.get("moe_layer_freq", 1),
      experts=text["num_experts"],
      experts_per_token=text["num_experts_per_token"],
      shared_experts=text["num_shared_experts"],
      expert_width=text["moe_intermediate_size"],
      routed_hidden=text.get("routed_expert_hidden_size") or text["hidden_size"],
      latent_moe=is_k3,
      latent_norm=is_k3 and text.get("latent_moe_use_norm", True),
      renormalize=text["moe_renormalize"],
      routed_scale=text["routed_scaling_factor"],
      eps=text["rms_norm_eps"],
      lora_eps=text.get("mla_lora_norm_eps", 1e-6),
      index_topk=text.get("index_topk") or 0,
      index_heads=text.get("index_n_heads") or 0,
      index_dim=text.get("index_head_dim") or 0,
      raw=document,
  )


def load_config(folder):
  with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
    return parse_config(json.load(file))
