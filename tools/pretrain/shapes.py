"""Sizes of the model, read from the `text_config` of its `config.json`."""

import copy
import json
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Shapes:
    """Every width the training code needs; layers are counted from 0 here."""
    width: int
    layers: int
    full_layers: frozenset  # layers with MLA and an indexer; the others are KDA
    vocabulary: int
    kda_heads: int
    kda_width: int
    conv_taps: int
    gate_bound: float
    heads: int
    nope_width: int
    rope_width: int
    value_width: int
    query_rank: int
    latent_width: int
    dense_layers: int
    dense_width: int
    experts: int
    active_experts: int
    expert_width: int
    expert_latent: int
    shared_width: int
    residual_block: int
    index_heads: int
    index_width: int
    index_topk: int
    norm_eps: float
    lora_norm_eps: float
    situ_gate: float
    situ_linear: float

    @property
    def kda_total(self):
        return self.kda_heads * self.kda_width

    @property
    def query_width(self):
        return self.nope_width + self.rope_width

    @property
    def attention_scale(self):
        return self.query_width ** -0.5

    @property
    def index_scale(self):
        return (self.index_heads * self.index_width) ** -0.5

    def is_full(self, layer):
        return layer in self.full_layers

    def is_dense(self, layer):
        return layer < self.dense_layers


def shapes_of_config(config):
    """Shapes of a parsed config.json (nested `text_config` or flat)."""
    text = config.get("text_config", config)
    linear = text["linear_attn_config"]
    return Shapes(
        width=text["hidden_size"], layers=text["num_hidden_layers"],
        full_layers=frozenset(number - 1 for number in linear["full_attn_layers"]),
        vocabulary=text["vocab_size"], kda_heads=linear["num_heads"],
        kda_width=linear["head_dim"], conv_taps=linear["short_conv_kernel_size"],
        gate_bound=linear["gate_lower_bound"], heads=text["num_attention_heads"],
        nope_width=text["qk_nope_head_dim"], rope_width=text["qk_rope_head_dim"],
        value_width=text["v_head_dim"], query_rank=text["q_lora_rank"],
        latent_width=text["kv_lora_rank"], dense_layers=text["first_k_dense_replace"],
        dense_width=text["intermediate_size"], experts=text["num_experts"],
        active_experts=text["num_experts_per_token"], expert_width=text["moe_intermediate_size"],
        expert_latent=text["routed_expert_hidden_size"],
        shared_width=text["num_shared_experts"] * text["moe_intermediate_size"],
        residual_block=text["attn_res_block_size"], index_heads=text["index_n_heads"],
        index_width=text["index_head_dim"], index_topk=text["index_topk"],
        norm_eps=text["rms_norm_eps"], lora_norm_eps=text.get("mla_lora_norm_eps", 1e-6),
        situ_gate=text["activation_situ_beta"], situ_linear=text["activation_situ_linear_beta"])


def read_config(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return json.load(file)


def smallest_config(config):
    """A copy of `config` shrunk to three narrow layers of every kind, for tests without a GPU."""
    config = copy.deepcopy(config)
    text = config.get("text_config", config)
    text.update(hidden_size=64, num_hidden_layers=3, intermediate_size=64, num_attention_heads=2,
                num_key_value_heads=2, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=32,
                qk_rope_head_dim=16, v_head_dim=32, num_experts=4, num_experts_per_token=2,
                moe_intermediate_size=32, routed_expert_hidden_size=32, index_n_heads=2,
                index_head_dim=32, index_topk=64, attn_res_block_size=2)
    text["linear_attn_config"].update(num_heads=2, head_dim=32, full_attn_layers=[2],
                                      kda_layers=[1, 3])
    return config
