"""The shipped checkpoint against the published tensor table, scaled to its own config."""

import json
import pathlib
import struct

MODEL = pathlib.Path(__file__).parents[3] / "models" / "demo"
FILES_BYTES_MAX = 24_000_000
LAYER = "language_model.model.layers.%d."
NORMS = ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm")


def read_header(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}


def kda_rows(linear, width):
    heads, inner = linear["num_heads"], linear["head_dim"]
    total = heads * inner
    rows = {name + "_proj.weight": ("BF16", (total, width)) for name in "qkvg"}
    rows |= {name + "_conv1d.weight": ("F32", (total, 1, 4)) for name in "qkv"}
    return rows | {
        "o_proj.weight": ("BF16", (width, total)), "f_a_proj.weight": ("BF16", (inner, width)),
        "f_b_proj.weight": ("BF16", (total, inner)), "b_proj.weight": ("BF16", (heads, width)),
        "A_log": ("F32", (128,)), "dt_bias": ("F32", (total,)), "o_norm.weight": ("F32", (inner,))}


def mla_rows(text, width):
    heads, low, latent = text["num_attention_heads"], text["q_lora_rank"], text["kv_lora_rank"]
    nope, rope, value = (text[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    index_heads, index_width = text["index_n_heads"], text["index_head_dim"]
    return {
        "q_a_proj.weight": ("BF16", (low, width)), "q_a_layernorm.weight": ("BF16", (low,)),
        "q_b_proj.weight": ("BF16", (heads * (nope + rope), low)),
        "kv_a_proj_with_mqa.weight": ("BF16", (latent + rope, width)),
        "kv_a_layernorm.weight": ("BF16", (latent,)),
        "kv_b_proj.weight": ("BF16", (heads * (nope + value), latent)),
        "g_proj.weight": ("BF16", (heads * value, width)),
        "o_proj.weight": ("BF16", (width, heads * value)),
        "indexer.wq_b.weight": ("BF16", (index_heads * index_width, low)),
        "indexer.wk.weight": ("BF16", (index_width, width)),
        "indexer.k_norm.weight": ("F32", (index_width,)),
        "indexer.k_norm.bias": ("F32", (index_width,)),
        "indexer.weights_proj.weight": ("BF16", (index_heads, width))}


def mlp_rows(prefix, inner, width):
    return {prefix + "gate_proj.weight": ("BF16", (inner, width)),
            prefix + "up_proj.weight": ("BF16", (inner, width)),
            prefix + "down_proj.weight": ("BF16", (width, inner))}


def moe_rows(text, width):
    experts, inner, latent = (text[k] for k in ("num_experts", "moe_intermediate_size",
                                                "routed_expert_hidden_size"))
    rows = {"gate.weight": ("BF16", (experts, width)),
            "gate.e_score_correction_bias": ("F32", (experts,)),
            "routed_expert_down_proj.weight": ("BF16", (latent, width)),
            "routed_expert_up_proj.weight": ("BF16", (width, latent)),
            "routed_expert_norm.weight": ("BF16", (latent,))}
    rows |= mlp_rows("shared_experts.", text["num_shared_experts"] * inner, width)
    for expert in range(experts):
        for part, out, inputs in (("w1", inner, latent), ("w3", inner, latent),
                                  ("w2", latent, inner)):
            name = "experts.%d.%s." % (expert, part)
            rows[name + "weight_packed"] = ("U8", (out, inputs // 2))
            rows[name + "weight_scale"] = ("U8", (out, inputs // 32))
    return {"block_sparse_moe." + name: row for name, row in rows.items()}


def expected_tensors(text):
    width, vocabulary = text["hidden_size"], text["vocab_size"]
    table = {"language_model.model.embed_tokens.weight": ("BF16", (vocabulary, width)),
             "language_model.lm_head.weight": ("BF16", (vocabulary, width)),
             "language_model.model.norm.weight": ("BF16", (width,)),
             "language_model.model.output_attn_res_norm.weight": ("BF16", (width,)),
             "language_model.model.output_attn_res_proj.weight": ("BF16", (1, width))}
    linear = text["linear_attn_config"]
    for layer in range(text["num_hidden_layers"]):
        rows = {name + ".weight": ("BF16", (width,)) for name in NORMS}
        rows |= {name + ".weight": ("BF16", (1, width))
                 for name in ("self_attention_res_proj", "mlp_res_proj")}
        full = layer + 1 in linear["full_attn_layers"]
        attention = mla_rows(text, width) if full else kda_rows(linear, width)
        rows |= {"self_attn." + name: row for name, row in attention.items()}
        dense = layer < text["first_k_dense_replace"]
        rows |= (mlp_rows("mlp.", text["intermediate_size"], width) if dense
                 else moe_rows(text, width))
        table |= {LAYER % layer + name: row for name, row in rows.items()}
    return table


def test_shipped_tensors_follow_the_published_table():
    text = json.loads((MODEL / "config.json").read_text())["text_config"]
    assert read_header(MODEL / "model.safetensors") == expected_tensors(text)


def test_shipped_files_are_small():
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= FILES_BYTES_MAX


def test_vocabulary_is_merges_and_specials():
    text = json.loads((MODEL / "config.json").read_text())["text_config"]
    lines = (MODEL / "tiktoken.model").read_text().splitlines()
    assert [int(line.split()[1]) for line in lines] == list(range(1792))
    assert text["vocab_size"] == len(lines) + 256
    assert text["eos_token_id"] == len(lines) + 2
