"""The text models of Kimi K3, K3.1 and Kimi-Linear, written to be read.

`precision="float64"` is the truth: nothing is rounded, and nothing is quantised unless a cache
format is named. `precision="bf16"` rounds at the points that docs/numerics.md names and nowhere
else: a product is summed in float64 and rounded once. Latents and index keys then pass through
their cache formats, bit for bit.
"""

from dataclasses import dataclass
import math

import torch
import torch.nn.functional as F

from tools.reference import config as config_lib
from tools.reference import folder as folder_lib
from tools.reference import formats
from tools.reference import kda_chunked

KDA_FORMS = {"recurrence": None, "chunk": "operands", "chunk-keep-solve": "keep_solve"}
L2_EPS = 1e-6  # of the q and k norms in KDA
INDEX_NORM_EPS = 1e-6
ROUTER_EPS = 1e-20


def rms_norm(x, weight, eps):
  return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def causal_conv(u, weight):
  """Depthwise: u [T, P], weight [P, 1, n]; the last tap is the current token. Then SiLU."""
  taps = weight.shape[-1]
  padded = torch.cat([u.new_zeros(taps - 1, u.shape[1]), u])
  y = sum(padded[j:j + len(u)] * weight[:, 0, j] for j in range(taps))
  return F.silu(y)


def kda_recurrence(q, k, v, g, beta):
  """q, k, g [T, H, K], v [T, H, V], beta [T, H] -> o [T, H, V].

  q and k are normed, q is scaled, g is the logarithm of the decay.
  """
  state = q.new_zeros(q.shape[1], q.shape[2], v.shape[2])
  out = []
  for t in range(len(q)):
    state = torch.exp(g[t])[:, :, None] * state
    error = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
    state = state + beta[t][:, None, None] * k[t][:, :, None] * error[:, None, :]
    out.append(torch.einsum("hkv,hk->hv", state, q[t]))
  return torch.stack(out)


def first_largest(scores, count):
  """Indices of the `count` largest along the last axis by (score descending, index ascending)."""
  return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count]


@dataclass
class Selection:
  """What one layer's indexer chose for one row that sees more than top-k tokens."""
  layer: int
  row: int
  positions: list
  margin: float  # the k-th score minus the next


class Model:
  """One checkpoint folder, ready for forward passes over whole sequences."""

  def __init__(self,
               path,
               precision="float64",
               kv_cache_dtype="auto",
               index_key_dtype="auto",
               kda_form="recurrence"):
    self.c = config_lib.load_config(path)
    self.files = folder_lib.Folder(path)
    if precision not in ("float64", "bf16"):
      raise ValueError(f"unknown precision {precision}: float64 or bf16")
    self.rounded = precision == "bf16"
    default = "fp8" if self.c.index_topk else "bf16"
    if not self.rounded:
      default = "exact"
    self.latent_format = default if kv_cache_dtype == "auto" else kv_cache_dtype
    self.key_format = default if index_key_dtype == "auto" else index_key_dtype
    self.chunk_rounding = KDA_FORMS[kda_form]
    self.weights = {}
    self.selections = []
    self.trace = []

  def never_read(self):
    """Tensors that no token of the passes so far needed and that should have been read."""
    # With no bank yet, layer 0 does not mix; and a token chooses few of the experts.
    idle = {f"model.layers.0.self_attention_res_{part}.weight" for part in ("norm", "proj")}
    return sorted(name for name in self.files.unread - idle if ".experts." not in name)

  # ---- Weights and rounding

  def w(self, name):
    if name not in self.weights:
      self.weights[name] = torch.from_numpy(self.files.values(name))
    return self.weights[name]

  def expert(self, name):
    """A routed matrix; MXFP4 and BF16 are told apart by the name on disk."""
    if name not in self.weights:
      if name + "_packed" in self.files:
        values = formats.mxfp4_decode(self.files.codes(name + "_packed"),
                                      self.files.codes(name + "_scale"))
      else:
        values = self.files.values(name)
      self.weights[name] = torch.from_numpy(values)
    return self.weights[name]

  def r(self, x):
    """An activation that leaves an operation: BF16 when rounding is on."""
    return x.float().bfloat16().double() if self.rounded else x

  def linear(self, x, name):
    return self.r(x @ self.w(name).T)

  def norm(self, x, name, eps):
    return self.r(rms_norm(x, self.w(name), eps))

  # ---- Token mixing

  def kda(self, x, base):
    c = self.c
    heads = lambda y: y.reshape(len(x), c.kda_heads, c.kda_dim)
    mixed = []
    for s in "qkv":
      u = self.linear(x, f"{base}{s}_proj.weight")
      mixed.append(heads(self.r(causal_conv(u, self.w(f"{base}{s}_conv1d.weight")))))
    q, k, v = mixed
    q, k = (y * torch.rsqrt((y * y).sum(-1, keepdim=True) + L2_EPS) for y in (q, k))
    z = heads(self.linear(self.linear(x, f"{base}f_a_proj.weight"), f"{base}f_b_proj.weight"))
    rate = torch.exp(self.w(f"{base}A_log").flatten()[:c.kda_heads])[None, :, None]
    z = z + heads(self.w(f"{base}dt_bias").expand(len(x), -1))
    if c.gate_lower_bound:
      g = c.gate_lower_bound * torch.sigmoid(rate * z)
    else:
      g = -rate * F.softplus(z)  # linear above 20
    beta = torch.sigmoid(self.linear(x, f"{base}b_proj.weight"))
    inputs = (q * c.kda_dim**-0.5, k, v, g, beta)
    if self.chunk_rounding:
      o = kda_chunked.kda_chunked(*inputs,
                                  bounded=bool(c.gate_lower_bound),
                                  rounding=self.chunk_rounding)
    else:
      o = kda_recurrence(*inputs)
    o = self.r(o)
    if c.full_rank_gate:
      gate = self.linear(x, f"{base}g_proj.weight")
    else:
      gate = self.linear(self.linear(x, f"{base}g_a_proj.weight"), f"{base}g_b_proj.weight")
    y = self.r(rms_norm(o, self.w(f"{base}o_norm.weight"), c.eps) * torch.sigmoid(heads(gate)))
    return self.linear(y.flatten(1), f"{base}o_proj.weight")

  def index_scores(self, x, c_q, base):
    """Scores [T, T] of every earlier key for every query; the upper triangle means nothing."""
    c = self.c
    q = self.linear(c_q, f"{base}wq_b.weight").reshape(len(x), c.index_heads, c.index_dim)
    k = F.layer_norm(self.linear(x, f"{base}wk.weight"), (c.index_dim,),
                     self.w(f"{base}k_norm.weight"), self.w(f"{base}k_norm.bias"), INDEX_NORM_EPS)
    k = self.r(k)
    gate = self.linear(x, f"{base}weights_proj.weight") * (c.index_heads**-0.5 * c.index_dim**-0.5)
    q_scale, k_scale = torch.ones(q.shape[:-1]).double(), torch.ones(len(k)).double()
    if self.key_format != "exact":
      # The queries take the format of the keys; an outer query scale goes into the head gate.
      (q, q_scale), (k, k_scale) = ((torch.from_numpy(part)
                                     for part in formats.through_index(y.numpy(), self.key_format))
                                    for y in (q, k))
    dots = torch.relu(torch.einsum("thj,sj->ths", q, k))
    return self.r(k_scale * torch.einsum("th,ths->ts", gate * q_scale, dots))

  def visible(self, x, c_q, base, layer):
    """Mask [T, T]: which positions each row attends to."""
    c, count = self.c, len(x)
    causal = torch.ones(count, count, dtype=torch.bool).tril()
    if not c.index_topk:
      return causal
    scores = self.index_scores(x, c_q, base + "indexer.").masked_fill(~causal, -math.inf)
    order = first_largest(scores, min(c.index_topk + 1, count))
    mask = torch.zeros_like(causal)
    for t in range(count):
      if t < c.index_topk:
        mask[t, :t + 1] = True  # all that is visible, whatever the scores are
        continue
      chosen = order[t, :c.index_topk]
      mask[t, chosen] = True
      margin = scores[t, order[t, c.index_topk - 1]] - scores[t, order[t, c.index_topk]]
      self.selections.append(Selection(layer, t, sorted(chosen.tolist()), margin.item()))
    return mask

  def mla(self, x, base, layer):
    c = self.c
    c_q = None
    if c.q_lora:
      c_q = self.norm(self.linear(x, f"{base}q_a_proj.weight"), f"{base}q_a_layernorm.weight",
                      c.lora_eps)
      q = self.linear(c_q, f"{base}q_b_proj.weight")
    else:
      q = self.linear(x, f"{base}q_proj.weight")
    q = q.reshape(len(x), c.heads, c.nope + c.rope)
    latent, extra = self.linear(x, f"{base}kv_a_proj_with_mqa.weight").split([c.kv_lora, c.rope],
                                                                             dim=-1)
    latent = self.norm(latent, f"{base}kv_a_layernorm.weight", c.lora_eps)
    row = torch.cat([latent, extra], dim=-1)
    if self.latent_format != "exact":
      row = torch.from_numpy(formats.through_latent(row.numpy(), self.latent_format, c.kv_lora))
    mask = self.visible(x, c_q, base, layer)
    attend = self.attend_absorbed if self.rounded else self.attend_plain
    o = attend(q, row, self.w(f"{base}kv_b_proj.weight"), mask)
    if c.mla_output_gate:
      gate = self.linear(x, f"{base}g_proj.weight").reshape(o.shape)
      o = self.r(o * torch.sigmoid(gate))
    return self.linear(o.flatten(1), f"{base}o_proj.weight")

  def attention_weights(self, scores, mask):
    """scores [H, T, S], mask [T, S]."""
    scale = (self.c.nope + self.c.rope)**-0.5
    return torch.softmax((scores * scale).masked_fill(~mask, -math.inf), dim=-1)

  def attend_plain(self, q, row, kv_b, mask):
    """Keys and values of every head are spelled out: the definition."""
    c = self.c
    latent, extra = row.split([c.kv_lora, c.rope], dim=-1)
    kv = (latent @ kv_b.T).reshape(len(row), c.heads, c.nope + c.v_dim)
    k_nope, v = kv.split([c.nope, c.v_dim], dim=-1)
    k = torch.cat([k_nope, extra[:, None, :].expand(-1, c.heads, -1)], dim=-1)
    p = self.attention_weights(torch.einsum("thd,shd->hts", q, k), mask)
    return torch.einsum("hts,shv->thv", p, v)

  def attend_absorbed(self, q, row, kv_b, mask):
    """The up-projections moved to the query and the output: how a cache of latents is read."""
    c = self.c
    up = kv_b.reshape(c.heads, c.nope + c.v_dim, c.kv_lora)
    q_nope, q_extra = q.split([c.nope, c.rope], dim=-1)
    absorbed = self.r(torch.einsum("thn,hnc->thc", q_nope, up[:, :c.nope]))
    q_row = torch.cat([absorbed, q_extra], dim=-1)
    p = self.attention_weights(torch.einsum("thc,sc->hts", q_row, row), mask)
    o = self.r(torch.einsum("hts,sc->thc", p, row[:, :c.kv_lora]))
    return self.r(torch.einsum("thc,hvc->thv", o, up[:, c.nope:]))

  # ---- Feed-forward

  def act(self, gate, up):
    c = self.c
    if c.activation == "situ":
      gate = c.situ_beta * torch.tanh(gate / c.situ_beta) * torch.sigmoid(gate)
      return gate * (c.situ_linear_beta * torch.tanh(up / c.situ_linear_beta))
    if c.activation == "silu":
      return F.silu(gate) * up
    raise ValueError(f"unknown hidden_act {c.activation}: situ or silu")

  def mlp(self, x, base):
    gate, up = self.linear(x, f"{base}gate_proj.weight"), self.linear(x, f"{base}up_proj.weight")
    return self.linear(self.r(self.act(gate, up)), f"{base}down_proj.weight")

  def route(self, x, base):
    """Experts and weights [T, A] of each token, in slot order."""
    c = self.c
    s = torch.sigmoid(x @ self.w(f"{base}gate.weight").T)
    chosen = first_largest(s + self.w(f"{base}gate.e_score_correction_bias"), c.experts_per_token)
    weights = s.gather(1, chosen)  # the bias chooses, it does not weigh
    if c.renormalize:
      weights = weights / (weights.sum(1, keepdim=True) + ROUTER_EPS)
    return chosen, weights * c.routed_scale

  def moe(self, x, base):
    c = self.c
    chosen, weights = self.route(x, base)
    z = self.linear(x, f"{base}routed_expert_down_proj.weight") if c.latent_moe else x
    routed = torch.zeros_like(z)
    for e in range(c.experts):
      tokens, slots = (chosen == e).nonzero(as_tuple=True)
      if len(tokens) == 0:
        continue
      w1, w2, w3 = (self.expert(f"{base}experts.{e}.{part}.weight") for part in ("w1", "w2", "w3"))
      rows = z[tokens]
      y = self.r(self.act(rows @ w1.T, rows @ w3.T)) @ w2.T
      routed[tokens] += weights[tokens, slots, None] * y
    routed = self.r(routed)
    if c.latent_moe:
      if c.latent_norm:
        routed = self.norm(routed, f"{base}routed_expert_norm.weight", c.eps)
      routed = self.linear(routed, f"{base}routed_expert_up_proj.weight")
    return self.r(routed + self.mlp(x, f"{base}shared_experts."))

  def ffn(self, x, base, layer):
    if self.c.is_dense(layer):
      return self.mlp(x, f"{base}mlp.")
    return self.moe(x, f"{base}block_sparse_moe.")

  # ---- The whole

  def mix(self, bank, p, norm, proj):
    """Attention over the bank of block sums and the live sum; values are not normalised."""
    rows = torch.stack(bank + [p])
    query = self.w(norm) * self.w(proj).flatten()
    s = (rms_norm(rows, 1.0, self.c.eps) * query).sum(-1)
    return self.r((torch.softmax(s, dim=0)[..., None] * rows).sum(0))

  def decoder(self, ids):
    """Normed hidden states [T, D] before the head."""
    c = self.c
    p = self.w("model.embed_tokens.weight")[torch.tensor(ids)]
    bank = []
    for layer in range(c.layers):
      base = f"model.layers.{layer}."
      h = p
      if bank:
        h = self.mix(bank, p, f"{base}self_attention_res_norm.weight",
                     f"{base}self_attention_res_proj.weight")
      if c.attn_res_block and layer % c.attn_res_block == 0:
        bank.append(p)  # the sum before mixing
        p = None
      h = self.norm(h, f"{base}input_layernorm.weight", c.eps)
      token_mixer = self.kda(h, f"{base}self_attn.") if c.is_kda(layer) else self.mla(
          h, f"{base}self_attn.", layer)
      p = token_mixer if p is None else self.r(p + token_mixer)
      h = p
      if bank:
        h = self.mix(bank, p, f"{base}mlp_res_norm.weight", f"{base}mlp_res_proj.weight")
      h = self.norm(h, f"{base}post_attention_layernorm.weight", c.eps)
      p = self.r(p + self.ffn(h, base, layer))
      self.trace.append(p)
    if bank:
      p = self.mix(bank, p, "model.output_attn_res_norm.weight",
                   "model.output_attn_res_proj.weight")
    return self.norm(p, "model.norm.weight", c.eps)

  def logits(self, ids):
    """[T, O]; not rounded: log-probabilities are taken in full precision from BF16 operands."""
    self.selections, self.trace = [], []
    return self.decoder(ids) @ self.w("lm_head.weight").T


def score(model, ids, top=20):
  """The positions of one sequence, as `perigee score --json` prints them."""
  logits = model.logits(ids)
  total = torch.logsumexp(logits, dim=-1)
  logprobs = logits - total[:, None]
  best = first_largest(logprobs, top)
  positions = []
  for t, token in enumerate(ids):
    target = logprobs[t, ids[t + 1]].item() if t + 1 < len(ids) else None
    pairs = [[i, logprobs[t, i].item()] for i in best[t].tolist()]
    positions.append({
        "id": token,
        "logsumexp": total[t].item(),
        "target_logprob": target,
        "top": pairs
    })
  return positions
