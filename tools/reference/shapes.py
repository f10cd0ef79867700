"""The table of tensors that a checkpoint holds: name without prefix, dims, type on disk.

Plain Python. Checked against the published counts of Kimi K3 in test_reference.py.
"""

from collections import namedtuple

# `kind` says how the checkpoint writer fills it; `params` is the number of weights it stands for.
Tensor = namedtuple("Tensor", "name dims dtype kind params")

MXFP4_GROUP = 32


def _count(dims):
  total = 1
  for dim in dims:
    total *= dim
  return total


def _row(name, dims, dtype="BF16", kind="linear", params=None):
  return Tensor(name, tuple(dims), dtype, kind, _count(dims) if params is None else params)


def kda_tensors(c, base, a_log_size):
  d, p, dim = c.hidden, c.kda_width, c.kda_dim
  for letter in "qkv":
    yield _row(f"{base}{letter}_proj.weight", (p, d))
  for letter in "qkv":
    yield _row(f"{base}{letter}_conv1d.weight", (p, 1, c.conv_kernel), "F32", "conv")
  yield _row(f"{base}f_a_proj.weight", (dim, d))
  yield _row(f"{base}f_b_proj.weight", (p, dim))
  yield _row(f"{base}b_proj.weight", (c.kda_heads, d), kind="beta")
  if c.full_rank_gate:
    yield _row(f"{base}g_proj.weight", (p, d))
  else:
    yield _row(f"{base}g_a_proj.weight", (dim, d))
    yield _row(f"{base}g_b_proj.weight", (p, dim))
  if c.kind == "kimi_linear":
    yield _row(f"{base}A_log", (1, 1, c.kda_heads, 1), "F32", "a_log")
  else:
    yield _row(f"{base}A_log", (a_log_size,), "F32", "a_log")
  yield _row(f"{base}dt_bias", (p,), "F32", "dt_bias")
  yield _row(f"{base}o_norm.weight", (dim,), "F32", "norm")
  yield _row(f"{base}o_proj.weight", (d, p), kind="out")


def mla_tensors(c, base):
  d, h = c.hidden, c.heads
  qk = c.nope + c.rope
  if c.q_lora:
    yield _row(f"{base}q_a_proj.weight", (c.q_lora, d))
    yield _row(f"{base}q_a_layernorm.weight", (c.q_lora,), kind="norm")
    yield _row(f"{base}q_b_proj.weight", (h * qk, c.q_lora), kind="query")
  else:
    yield _row(f"{base}q_proj.weight", (h * qk, d), kind="query")
  yield _row(f"{base}kv_a_proj_with_mqa.weight", (c.kv_lora + c.rope, d))
  yield _row(f"{base}kv_a_layernorm.weight", (c.kv_lora,), kind="norm")
  yield _row(f"{base}kv_b_proj.weight", (h * (c.nope + c.v_dim), c.kv_lora))
  if c.mla_output_gate:
    yield _row(f"{base}g_proj.weight", (h * c.v_dim, d))
  yield _row(f"{base}o_proj.weight", (d, h * c.v_dim), kind="out")
  if c.index_topk:
    base += "indexer."
    yield _row(f"{base}wq_b.weight", (c.index_heads * c.index_dim, c.q_lora))
    yield _row(f"{base}wk.weight", (c.index_dim, d))
    yield _row(f"{base}k_norm.weight", (c.index_dim,), "F32", "norm")
    yield _row(f"{base}k_norm.bias", (c.index_dim,), "F32", "bias")
    yield _row(f"{base}weights_proj.weight", (c.index_heads, d))


def mlp_tensors(base, d, width):
  yield _row(f"{base}gate_proj.weight", (width, d))
  yield _row(f"{base}up_proj.weight", (width, d))
  yield _row(f"{base}down_proj.weight", (d, width), kind="out")


def moe_tensors(c, base):
  d, z, f = c.hidden, c.routed_hidden, c.expert_width
  yield _row(f"{base}gate.weight", (c.experts, d), kind="router")
  yield _row(f"{base}gate.e_score_correction_bias", (c.experts,), "F32", "router_bias")
  if c.latent_moe:
    yield _row(f"{base}routed_expert_down_proj.weight", (z, d))
    yield _row(f"{base}routed_expert_up_proj.weight", (d, z), kind="routed_out")
    if c.latent_norm:
      yield _row(f"{base}routed_expert_norm.weight", (z,), kind="norm")
  yield from mlp_tensors(f"{base}shared_experts.", d, c.shared_experts * f)
  for expert in range(c.experts):
    for part, rows, columns in (("w1", f, z), ("w2", z, f), ("w3", f, z)):
      name = f"{base}experts.{expert}.{part}.weight"
      if c.latent_moe:
        yield _row(f"{name}_packed", (rows, columns // 2), "U8", "mxfp4", rows * columns)
        yield _row(f"{name}_scale", (rows, columns // MXFP4_GROUP), "U8", "mxfp4_scale", 0)
      else:
        yield _row(name, (rows, columns), kind="routed_out" if part == "w2" else "linear")


def text_tensors(c, a_log_size=None):
  """All tensors of the text model. `a_log_size`: K3 kinds pad A_log with zeros to this."""
  d = c.hidden
  if a_log_size is None:
    a_log_size = -(-c.kda_heads // 128) * 128
  yield _row("model.embed_tokens.weight", (c.vocab, d), kind="embedding")
  for layer in range(c.layers):
    base = f"model.layers.{layer}."
    yield _row(f"{base}input_layernorm.weight", (d,), kind="norm")
    yield _row(f"{base}post_attention_layernorm.weight", (d,), kind="norm")
    if c.attn_res_block:
      for place in ("self_attention", "mlp"):
        yield _row(f"{base}{place}_res_norm.weight", (d,), kind="norm")
        yield _row(f"{base}{place}_res_proj.weight", (1, d), kind="res_query")
    if c.is_kda(layer):
      yield from kda_tensors(c, f"{base}self_attn.", a_log_size)
    else:
      yield from mla_tensors(c, f"{base}self_attn.")
    if c.is_dense(layer):
      yield from mlp_tensors(f"{base}mlp.", d, c.dense_width)
    else:
      yield from moe_tensors(c, f"{base}block_sparse_moe.")
  yield _row("model.norm.weight", (d,), kind="norm")
  if c.attn_res_block:
    yield _row("model.output_attn_res_norm.weight", (d,), kind="norm")
    yield _row("model.output_attn_res_proj.weight", (1, d), kind="res_query")
  yield _row("lm_head.weight", (c.vocab, d), kind="head")


def vision_tensors(vision):
  """The image tower and the projector of the published checkpoint (names carry no prefix)."""
  w, inner, qkv = vision["vt_hidden_size"], vision["vt_intermediate_size"], vision[
      "qkv_hidden_size"]
  patch = vision["patch_size"]
  rows, columns = vision["merge_kernel_size"]
  merged = rows * columns * vision["mm_hidden_size"]
  text = vision["text_hidden_size"]
  yield _row("vision_tower.patch_embed.proj.weight", (w, 3, patch, patch))
  grid = (vision["init_pos_emb_height"], vision["init_pos_emb_width"], w)
  yield _row("vision_tower.patch_embed.pos_emb.weight", grid)
  for block in range(vision["vt_num_hidden_layers"]):
    base = f"vision_tower.encoder.blocks.{block}."
    yield _row(f"{base}norm0.weight", (w,))
    yield _row(f"{base}norm1.weight", (w,))
    yield _row(f"{base}wqkv.weight", (3 * qkv, w))
    yield _row(f"{base}wo.weight", (w, qkv))
    yield _row(f"{base}mlp.fc0.weight", (inner, w))
    yield _row(f"{base}mlp.fc1.weight", (w, inner))
  yield _row("vision_tower.encoder.final_layernorm.weight", (w,))
  yield _row("mm_projector.proj.0.weight", (merged, merged))
  yield _row("mm_projector.proj.2.weight", (text, merged))
  yield _row("mm_projector.post_norm.weight", (text,))


def count(c, a_log_size=None):
  """Parameters of the text model: (total, active for a token without the input embedding)."""
  total = active = 0
  for tensor in text_tensors(c, a_log_size):
    total += tensor.params
    if tensor.kind == "embedding":
      continue
    if ".experts." in tensor.name:
      active += tensor.params * c.experts_per_token  # divided once below: all experts are alike
    else:
      active += tensor.params * c.experts
  return total, active // c.experts
