"""The model's parameters: names, shapes and initial values.

Names are those of the checkpoint without the prefix `language_model.`. Two things differ from the
disk: the experts of a layer are stacked to [experts, out, in] under `experts.w1|w2|w3`, and `A_log`
has one value a head without padding. All are FP32 here.
"""

import torch

IN_GAIN = 0.7  # standard deviation of an in-projection times sqrt(inputs)
OUT_GAIN = 0.35  # of an out-projection: half, so that nine layers start close to the identity
EMBEDDING_STD, HEAD_STD = 0.5, 0.02
CONV_STD, CONV_CURRENT_TAP = 0.1, 0.8
DECAY_BIAS_LOW, DECAY_BIAS_HIGH = -9.0, -2.0  # KDA channels start with memories of all lengths
ROUTER_BIAS = "e_score_correction_bias"
F32_ENDINGS = ("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", ROUTER_BIAS, "k_norm.weight",
               "k_norm.bias")


def layer_name(layer):
    return "model.layers.%d." % layer


def is_f32(name):
    """Whether the checkpoint keeps this tensor in FP32."""
    return name.endswith(F32_ENDINGS)


class Initializer:
    """Fills a dictionary of tensors from one seeded stream."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors = {}

    def normal(self, name, *shape, std):
        self.tensors[name] = torch.randn(*shape, generator=self.generator) * std

    def matrix(self, name, outputs, inputs, gain=IN_GAIN):
        self.normal(name + ".weight", outputs, inputs, std=gain * inputs ** -0.5)

    def ones(self, name, size):
        self.tensors[name] = torch.ones(size)

    def zeros(self, name, *shape):
        self.tensors[name] = torch.zeros(*shape)


def _add_kda(init, name, s):
    total = s.kda_total
    for projection in ("q_proj", "k_proj", "v_proj", "g_proj"):
        init.matrix(name + projection, total, s.width)
    init.matrix(name + "f_a_proj", s.kda_width, s.width)
    init.matrix(name + "f_b_proj", total, s.kda_width, gain=0.3)
    init.matrix(name + "b_proj", s.kda_heads, s.width)
    init.matrix(name + "o_proj", s.width, total, gain=OUT_GAIN)
    for stream in "qkv":
        key = name + stream + "_conv1d.weight"
        init.normal(key, total, 1, s.conv_taps, std=CONV_STD)
        init.tensors[key][:, :, -1] += CONV_CURRENT_TAP
    init.zeros(name + "A_log", s.kda_heads)
    uniform = torch.rand(total, generator=init.generator)
    init.tensors[name + "dt_bias"] = (
        DECAY_BIAS_LOW + (DECAY_BIAS_HIGH - DECAY_BIAS_LOW) * uniform)
    init.ones(name + "o_norm.weight", s.kda_width)


def _add_mla(init, name, s):
    init.matrix(name + "q_a_proj", s.query_rank, s.width)
    init.ones(name + "q_a_layernorm.weight", s.query_rank)
    init.matrix(name + "q_b_proj", s.heads * s.query_width, s.query_rank)
    init.matrix(name + "kv_a_proj_with_mqa", s.latent_width + s.rope_width, s.width)
    init.ones(name + "kv_a_layernorm.weight", s.latent_width)
    init.matrix(name + "kv_b_proj", s.heads * (s.nope_width + s.value_width), s.latent_width)
    init.matrix(name + "g_proj", s.heads * s.value_width, s.width)
    init.matrix(name + "o_proj", s.width, s.heads * s.value_width, gain=OUT_GAIN)
    init.matrix(name + "indexer.wq_b", s.index_heads * s.index_width, s.query_rank, gain=1.0)
    init.matrix(name + "indexer.wk", s.index_width, s.width, gain=1.0)
    init.ones(name + "indexer.k_norm.weight", s.index_width)
    init.zeros(name + "indexer.k_norm.bias", s.index_width)
    init.matrix(name + "indexer.weights_proj", s.index_heads, s.width, gain=1.0)


def _add_mlp(init, name, width, inner):
    init.matrix(name + "gate_proj", inner, width)
    init.matrix(name + "up_proj", inner, width)
    init.matrix(name + "down_proj", width, inner, gain=OUT_GAIN)


def _add_moe(init, name, s):
    init.matrix(name + "gate", s.experts, s.width, gain=0.5)
    init.zeros(name + "gate." + ROUTER_BIAS, s.experts)
    init.matrix(name + "routed_expert_down_proj", s.expert_latent, s.width)
    init.matrix(name + "routed_expert_up_proj", s.width, s.expert_latent, gain=OUT_GAIN)
    init.ones(name + "routed_expert_norm.weight", s.expert_latent)
    _add_mlp(init, name + "shared_experts.", s.width, s.shared_width)
    for part, outputs, inputs in (("w1", s.expert_width, s.expert_latent),
                                  ("w3", s.expert_width, s.expert_latent),
                                  ("w2", s.expert_latent, s.expert_width)):
        init.normal(name + "experts." + part, s.experts, outputs, inputs,
                    std=IN_GAIN * inputs ** -0.5)


def initial_parameters(shapes, seed):
    """Returns {name: FP32 tensor}, drawn from `seed`."""
    init = Initializer(seed)
    init.normal("model.embed_tokens.weight", shapes.vocabulary, shapes.width, std=EMBEDDING_STD)
    init.normal("lm_head.weight", shapes.vocabulary, shapes.width, std=HEAD_STD)
    for layer in range(shapes.layers):
        name = layer_name(layer)
        for norm in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm",
                     "mlp_res_norm"):
            init.ones(name + norm + ".weight", shapes.width)
        init.zeros(name + "self_attention_res_proj.weight", 1, shapes.width)
        init.zeros(name + "mlp_res_proj.weight", 1, shapes.width)
        add_attention = _add_mla if shapes.is_full(layer) else _add_kda
        add_attention(init, name + "self_attn.", shapes)
        if shapes.is_dense(layer):
            _add_mlp(init, name + "mlp.", shapes.width, shapes.dense_width)
        else:
            _add_moe(init, name + "block_sparse_moe.", shapes)
    init.ones("model.norm.weight", shapes.width)
    init.ones("model.output_attn_res_norm.weight", shapes.width)
    init.zeros("model.output_attn_res_proj.weight", 1, shapes.width)
    return init.tensors


def place(tensors, device):
    """Moves tensors to `device` as leaves to learn; the router bias follows the load instead."""
    return {name: tensor.to(device, copy=True).requires_grad_(not name.endswith(ROUTER_BIAS))
            for name, tensor in tensors.items()}
