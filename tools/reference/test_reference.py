"""Checks of the reference itself: python -m pytest tools/reference

Each part is compared with a second way of computing it, or with numbers worked out by hand.
"""

import json
import math
import os

import numpy as np
import pytest
import torch

from tools.golden import specs as specs_lib
from tools.golden import make_config_golden, make_model_golden
from tools.reference import checkpoint, config, folder, formats, kda_chunked, shapes
from tools.reference import model as model_lib

torch.set_num_threads(1)  # the products are tiny: threads would only wait for each other

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONFIGS = os.path.join(ROOT, "tests", "golden", "config")
SPECS = {spec["name"]: spec for spec in specs_lib.specs()}


def load_document(name):
  with open(os.path.join(CONFIGS, name + ".json"), encoding="utf-8") as file:
    return json.load(file)


@pytest.fixture
def tiny(tmp_path):
  """Writes the checkpoint of a named spec and returns (folder, ids)."""

  def write(name):
    path = str(tmp_path / name)
    checkpoint.write_folder(SPECS[name], path)
    return path, checkpoint.token_ids(SPECS[name])

  return write


# ---- Formats


def test_bf16_rounds_to_even():
  cases = [(1.0, 0x3F80), (1.0 + 2.0**-8, 0x3F80), (1.0 + 3 * 2.0**-8, 0x3F82),
           (-1.0 - 2.0**-7, 0xBF81), (1.0 + 2.0**-8 + 2.0**-20, 0x3F81), (0.0, 0), (-0.0, 0x8000)]
  for value, code in cases:
    assert formats.bf16_bits(np.array([value]))[0] == code, value
  assert formats.bf16_values(np.array([0x3F82], np.uint16))[0] == 1.015625


def test_e4m3_by_hand():
  cases = [(0.0, 0x00), (-0.0, 0x80), (1.0, 0x38), (1.125, 0x39), (1.0625, 0x38), (1.1875, 0x3A),
           (448.0, 0x7E), (463.0, 0x7E), (464.0, 0x7E), (1e30, 0x7E), (-1e30, 0xFE),
           (2.0**-9, 0x01), (2.0**-10, 0x00), (1.5 * 2.0**-9, 0x02), (2.5 * 2.0**-9, 0x02),
           (7.5 * 2.0**-9, 0x08), (2.0**-6, 0x08), (15.5, 0x58), (240.0, 0x77)]
  for value, code in cases:
    assert formats.e4m3_bits(np.array([value]))[0] == code, value


def test_e4m3_round_trip_and_nearest():
  codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
  assert (formats.e4m3_bits(formats.e4m3_values(codes)) == codes).all()
  positive = np.sort(formats.e4m3_values(codes[codes < 128]))
  rng = np.random.default_rng(1)
  x = np.exp(rng.uniform(-8, 6, 4000))
  nearest = positive[np.abs(positive[None] - x[:, None]).argmin(1)]
  assert (formats.e4m3_values(formats.e4m3_bits(x)) == nearest).all()


def test_e2m1_ties():
  cases = [(0.25, 0), (0.2501, 1), (0.75, 2), (0.7499, 1), (1.25, 2), (1.75, 4), (2.5, 4),
           (2.51, 5), (3.5, 6), (5.0, 6), (5.01, 7), (6.0, 7), (100.0, 7), (-0.25, 8), (-3.5, 14),
           (-100.0, 15)]
  for value, code in cases:
    assert formats.e2m1_bits(np.array([value]))[0] == code, value


def test_mxfp4_by_hand():
  x = np.zeros((2, 32))
  x[0, :4] = [6.0, -3.0, 0.5, 0.25]  # amax 6: scale 2^0
  x[1, :4] = [6.1, 1.0, -12.0, 5.0]  # amax 12: scale 2^1
  packed, scales = formats.mxfp4_encode(x)
  assert scales.tolist() == [[127], [128]]
  assert packed[0, :2].tolist() == [0xD7, 0x01]
  assert formats.mxfp4_decode(packed, scales)[1, :4].tolist() == [6.0, 1.0, -12.0,
                                                                  4.0]  # 2.5 ties down to 2
  just_above = np.zeros((1, 32))
  just_above[0, 0] = np.float32(6.0078125)
  assert formats.mxfp4_encode(just_above)[1].tolist() == [[128]]
  zero = formats.mxfp4_encode(np.zeros((1, 32)))
  assert zero[1].tolist() == [[1]
                             ] and not formats.mxfp4_decode(*zero).any()  # the floor is 6 * 2^-126


def test_nvfp4_by_hand():
  x = np.zeros((3, 16))
  x[0, :3] = [6.0, -1.25, 0.75]  # scale 1
  x[1, :3] = [7.0, 3.0, -0.3]  # 7/6 rounds to 1.125
  x[2, 0] = 2.0**-8  # amax/6 below half the smallest e4m3: everything reads as zero
  packed, scales = formats.nvfp4_encode(x)
  assert scales[:, 0].tolist() == [0x38, 0x39, 0x00]
  read = formats.nvfp4_decode(packed, scales)
  assert read[0, :3].tolist() == [6.0, -1.0, 1.0]
  assert read[1, :3].tolist() == [6.75, 3.375,
                                  -0.5625]  # 3/1.125 = 2.67 -> 3, 0.3/1.125 = 0.267 -> 0.5
  assert not read[2].any()
  big = np.full((1, 16), 1e4)
  packed, scales = formats.nvfp4_encode(big)
  assert scales[0, 0] == 0x7E and formats.nvfp4_decode(packed, scales)[0, 0] == 2688.0


def test_fp8_vector_scale():
  x = np.array([[1.0, -2.0, 4.0], [0.0, 0.0, 1e-6]])
  codes, scale = formats.fp8_vector_encode(x)
  assert scale[0] == np.float32(4.0) / np.float32(448.0)
  assert scale[1] == np.float32(1e-4) / np.float32(448.0)  # the floor of amax
  assert formats.e4m3_values(codes)[0].tolist() == [112.0, -224.0, 448.0]


def test_latent_formats():
  row = np.array([[500.0, -1.0625] + [0.1] * 14 + [1.1875, -600.0]])
  assert formats.through_latent(row, "fp8",
                                16)[0, [0, 1, 16, 17]].tolist() == [448.0, -1.0, 1.25, -448.0]
  four = formats.through_latent(row, "nvfp4", 16)[0]
  assert four[0] == 80 * 6.0  # 500/6 = 83.3 -> 80; 500/80 saturates at 6
  assert four[16:].tolist() == [1.25, -448.0]
  with pytest.raises(ValueError):
    formats.through_latent(row[:, :12], "nvfp4", 10)


# ---- Configurations and counts


def test_published_counts():
  c = config.parse_config(load_document("k3_config"))
  assert c.kind == "k3"
  total, active = shapes.count(c)
  assert total == 2_779_484_478_208
  assert active == 104_189_614_848
  embedding = c.vocab * c.hidden
  assert active + embedding == 105_364_019_968
  vision = list(shapes.vision_tensors(load_document("k3_config")["vision_config"]))
  assert sum(row.params for row in vision) == 401_214_464 + 46_144_512
  text = list(shapes.text_tensors(c))
  assert len(text) + len(vision) == 497_220
  # Bytes of all tensors, against the published sum.
  size = {"BF16": 2, "F32": 4, "U8": 1}
  assert sum(math.prod(row.dims) * size[row.dtype] for row in text + vision) == 1_560_860_324_864


def test_published_layers():
  c = config.parse_config(load_document("k3_config"))
  per_layer = {}
  for row in shapes.text_tensors(c):
    if row.name.startswith("model.layers."):
      per_layer.setdefault(int(row.name.split(".")[2]), []).append(row)
  part = lambda layer, word: sum(row.params for row in per_layer[layer] if word in row.name)
  assert part(0, ".self_attn.") == 443_740_416
  assert part(3, ".self_attn.") == 232_196_096
  assert part(92, ".self_attn.") == part(91, ".self_attn.") == 232_196_096
  assert part(0, ".mlp.") == 726_663_168
  assert part(1, ".experts.17.") == 33_030_144
  assert part(1, ".shared_experts.") == 132_120_576
  assert part(1, ".routed_expert_") == 51_383_808
  assert part(1, "_moe.gate.") == 6_423_424


def test_kinds():
  assert config.parse_config(load_document("k31_config")).kind == "k31"
  assert config.parse_config(load_document("kimi_linear_config")).kind == "kimi_linear"
  assert config.parse_config(load_document("k3_config")["text_config"]).kind == "k3"  # flat
  mixed = load_document("k3_config")
  del mixed["text_config"]["attn_res_block_size"]
  with pytest.raises(config.ConfigError):
    config.parse_config(mixed)
  indexed = load_document("kimi_linear_config")
  indexed["index_topk"] = 16
  with pytest.raises(config.ConfigError):
    config.parse_config(indexed)


def test_golden_configs_agree():
  assert load_document("k3_config") == make_config_golden.k3()
  expected = load_document("expected")
  for name in ("k3_config", "k31_config", "kimi_linear_config"):
    assert expected[name] == make_config_golden.expected(load_document(name))


# ---- Folders


def test_hash_by_hand():
  assert checkpoint.fnv1a64("a") == 0xAF63DC4C8601EC8C
  # The published first outputs of splitmix64 from seed 0.
  with np.errstate(over="ignore"):
    stream = checkpoint.splitmix64(np.arange(1, 4, dtype=np.uint64) * checkpoint.GOLDEN_GAMMA)
  assert [int(x) for x in stream] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
  values = checkpoint.bell(3, "x", 20000)
  assert abs(values.mean()) < 0.03 and abs(values.std() - 1) < 0.02


def test_folder_is_the_same_in_any_layout(tiny, tmp_path):
  spec = SPECS["k31_base"]
  path, ids = tiny("k31_base")
  want = model_lib.Model(path).logits(ids)
  text = spec["config"]["text_config"]
  for changes in ({"prefix": ""}, {"shards": 3}, {"config": text, "prefix": "", "shards": 2}):
    other = str(tmp_path / "other")
    checkpoint.write_folder({**spec, **changes}, other)
    assert torch.equal(model_lib.Model(other).logits(ids), want)
    for name in os.listdir(other):
      os.remove(os.path.join(other, name))


@pytest.mark.parametrize("name", ["k31_flat", "k3_base", "linear_base"])
def test_a_log_padding(tiny, name):
  path, _ = tiny(name)
  files = folder.Folder(path)
  a_log = files.values("model.layers.0.self_attn.A_log")
  heads = config.load_config(path).kda_heads
  if name == "linear_base":
    assert a_log.shape == (1, 1, heads, 1)
  else:
    assert a_log.shape == (SPECS[name]["a_log_size"],) and not a_log[heads:].any()
  assert a_log.flatten()[:heads].all()


@pytest.mark.parametrize("name", ["k31_no_dense", "linear_nested", "k3_short"])
def test_every_tensor_is_read(tiny, name):
  path, ids = tiny(name)
  model = model_lib.Model(path)
  model.logits(ids)
  assert model.never_read() == []


# ---- Mathematics


def chunked_kda(q, k, v, g, beta, size):
  """The WY form, one head: q, k, g [T, K], v [T, V], beta [T]."""
  state, out = torch.zeros(q.shape[1], v.shape[1]).double(), []
  for at in range(0, len(q), size):
    qc, kc, vc, gc, bc = (x[at:at + size] for x in (q, k, v, g, beta))
    total = gc.cumsum(0)
    pair = torch.exp(total[:, None] - total[None])  # [r, c, K]
    a = (bc[:, None] * torch.einsum("rk,ck,rck->rc", kc, kc, pair)).tril(-1)
    t = torch.linalg.solve_triangular(torch.eye(len(qc)).double() + a, torch.diag(bc), upper=False)
    m = torch.einsum("rk,ck,rck->rc", qc, kc, pair).tril()
    new = t @ vc - t @ (total.exp() * kc) @ state
    out.append((qc * total.exp()) @ state + m @ new)
    state = total[-1].exp()[:, None] * state + (kc * (total[-1] - total).exp()).T @ new
  return torch.cat(out)


@pytest.mark.parametrize("decay", ["mixed", "strong", "none"])
@pytest.mark.parametrize("tokens,size", [(50, 16), (64, 16), (7, 16), (33, 8)])
def test_kda_recurrence_against_chunks(decay, tokens, size):
  gen = torch.Generator().manual_seed(5)
  rand = lambda *dims: torch.randn(*dims, generator=gen, dtype=torch.float64)
  q, k = (torch.nn.functional.normalize(rand(tokens, 2, 24), dim=-1) for _ in range(2))
  v, beta = rand(tokens, 2, 20), torch.sigmoid(rand(tokens, 2))
  g = {
      "mixed": -5 * torch.sigmoid(2 * rand(tokens, 2, 24)),
      "strong": torch.full((tokens, 2, 24), -5.0).double(),
      "none": torch.zeros(tokens, 2, 24).double()
  }[decay]
  want = model_lib.kda_recurrence(q, k, v, g, beta)
  for h in range(2):
    got = chunked_kda(q[:, h], k[:, h], v[:, h], g[:, h], beta[:, h], size)
    assert (got - want[:, h]).abs().max() < 1e-12


@pytest.mark.parametrize("bounded", [True, False])
def test_kda_of_the_devices(bounded):
  """The form with S kept per chunk of 16; without a bound the decay may be any."""
  gen = torch.Generator().manual_seed(6)
  rand = lambda *dims: torch.randn(*dims, generator=gen, dtype=torch.float64)
  q, k = (torch.nn.functional.normalize(rand(77, 3, 20), dim=-1) for _ in range(2))
  v, beta = rand(77, 3, 28), torch.sigmoid(rand(77, 3))
  g = -5 * torch.sigmoid(3 * rand(77, 3, 20)) if bounded else -torch.exp(3 * rand(77, 3, 20))
  want = model_lib.kda_recurrence(q, k, v, g, beta)
  exact = kda_chunked.kda_chunked(q, k, v, g, beta, bounded)
  # exp(80) * exp(-80) loses digits where a chunk decays by all that the bound allows.
  assert (exact - want).abs().max() < 1e-11
  for rounding in ("operands", "keep_solve"):
    rounded = kda_chunked.kda_chunked(q, k, v, g, beta, bounded, rounding)
    assert 1e-5 < (rounded - want).norm() / want.norm() < 1e-2


def test_kda_by_hand():
  # One head of width 1: S1 = b k v; S2 = a S1 + b k (v - k a S1); o = S q.
  col = lambda *values: torch.tensor(values).double().reshape(-1, 1, 1)
  q, k, v, g = col(2.0, 3.0), col(1.0, 0.5), col(4.0, 8.0), col(-1.0, math.log(0.5))
  beta = torch.tensor([[0.5], [0.25]]).double()
  s1 = 0.5 * 4.0
  s2 = 0.5 * s1 + 0.25 * 0.5 * (8.0 - 0.5 * 0.5 * s1)
  got = model_lib.kda_recurrence(q, k, v, g, beta).flatten()
  assert torch.allclose(got, torch.tensor([2 * s1, 3 * s2]).double(), atol=1e-15)


def test_conv_by_hand():
  u = torch.tensor([[1.0], [2.0], [3.0]]).double()
  weight = torch.tensor([[[0.1, 0.2, 0.3, 1.0]]]).double()
  y = torch.tensor([1.0, 2.0 + 0.3, 3.0 + 0.6 + 0.2]).double()
  got = model_lib.causal_conv(u, weight).flatten()
  assert torch.allclose(got, y * torch.sigmoid(y), atol=1e-15)


def test_situ_by_hand(tiny):
  path, _ = tiny("k3_short")
  act = model_lib.Model(path).act
  g, u = 3.0, -40.0
  want = 4 * math.tanh(g / 4) / (1 + math.exp(-g)) * 25 * math.tanh(u / 25)
  assert act(torch.tensor(g).double(),
             torch.tensor(u).double()).item() == pytest.approx(want, rel=1e-14)
  far = act(torch.tensor(1e3).double(), torch.tensor(1e3).double()).item()
  assert far == pytest.approx(100.0)


@pytest.mark.parametrize("name", ["k31_base", "linear_base", "k3_wide_heads"])
def test_absorbed_is_unabsorbed(tiny, name):
  path, ids = tiny(name)
  plain = model_lib.Model(path)
  absorbed = model_lib.Model(path)
  absorbed.attend_plain = absorbed.attend_absorbed
  assert (plain.logits(ids) - absorbed.logits(ids)).abs().max() < 1e-11


def test_sparse_is_dense_below_topk(tiny):
  path, ids = tiny("k31_base")
  topk = model_lib.Model(path).c.index_topk
  sparse, dense = model_lib.Model(path), model_lib.Model(path)
  dense.c.index_topk = 0
  near, far = ids[:topk], ids[:topk + 20]
  assert torch.equal(sparse.logits(near), dense.logits(near))
  assert not sparse.selections
  gap = (sparse.logits(far) - dense.logits(far)).abs().amax(1)
  assert gap[:topk].max() < 1e-12 and gap[topk:].max() > 1e-3


def test_index_scores_against_loops(tiny):
  path, _ = tiny("k31_one_index_head")
  model = model_lib.Model(path)
  c, base = model.c, "model.layers.1.self_attn.indexer."
  gen = torch.Generator().manual_seed(2)
  x = torch.randn(5, c.hidden, generator=gen, dtype=torch.float64)
  c_q = torch.randn(5, c.q_lora, generator=gen, dtype=torch.float64)
  got = model.index_scores(x, c_q, base)
  raw = x @ model.w(base + "wk.weight").T
  keys = (raw -
          raw.mean(1, keepdim=True)) / torch.sqrt(raw.var(1, unbiased=False, keepdim=True) + 1e-6)
  keys = keys * model.w(base + "k_norm.weight") + model.w(base + "k_norm.bias")
  queries, gates = c_q @ model.w(base + "wq_b.weight").T, x @ model.w(base +
                                                                      "weights_proj.weight").T
  for t in range(5):
    for s in range(5):
      want = 0.0
      for h in range(c.index_heads):
        q = queries[t, h * c.index_dim:(h + 1) * c.index_dim]
        want += gates[t, h] * (c.index_heads * c.index_dim)**-0.5 * max(0.0, (q @ keys[s]).item())
      assert abs(got[t, s] - want) < 1e-13


def test_ties_go_to_the_first():
  scores = torch.tensor([[1.0, 2.0, 2.0, 3.0, 2.0, -1.0]]).double()
  assert model_lib.first_largest(scores, 3).tolist() == [[3, 1, 2]]
  assert model_lib.first_largest(torch.zeros(1, 40), 4).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("name", ["k31_scaled", "k31_shared_3", "linear_base", "linear_no_dense"])
def test_moe_against_dense_loop(tiny, name):
  """Every expert on every token, weights zero where the router did not choose."""
  path, _ = tiny(name)
  model = model_lib.Model(path)
  c = model.c
  layer = next(l for l in range(c.layers) if not c.is_dense(l))
  base = f"model.layers.{layer}.block_sparse_moe."
  x = torch.randn(9, c.hidden, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
  got = model.moe(x, base)
  for t in range(len(x)):
    s = torch.sigmoid(model.w(base + "gate.weight") @ x[t])
    order = sorted(range(c.experts),
                   key=lambda e: -(s[e] + model.w(base + "gate.e_score_correction_bias")[e]).item())
    chosen = order[:c.experts_per_token]
    total = sum(s[e] for e in chosen) if c.renormalize else 1.0
    z = model.w(base + "routed_expert_down_proj.weight") @ x[t] if c.latent_moe else x[t]
    routed = 0
    for e in range(c.experts):
      weight = s[e] / total * c.routed_scale if e in chosen else 0.0
      w1, w2, w3 = (model.expert(f"{base}experts.{e}.{p}.weight") for p in ("w1", "w2", "w3"))
      routed = routed + weight * (w2 @ model.act(w1 @ z, w3 @ z))
    if c.latent_moe:
      routed = routed / torch.sqrt((routed**2).mean() +
                                   c.eps) * model.w(base + "routed_expert_norm.weight")
      routed = model.w(base + "routed_expert_up_proj.weight") @ routed
    want = routed + model.mlp(x[t:t + 1], base + "shared_experts.")[0]
    assert (got[t] - want).abs().max() < 1e-12


def test_later_tokens_change_nothing(tiny):
  for name in ("k31_mla_last_two", "linear_hidden_52"):
    path, ids = tiny(name)
    model = model_lib.Model(path)
    whole = model.logits(ids)
    assert (model.logits(ids[:37]) - whole[:37]).abs().max() < 1e-12


def test_emulation_is_near_the_truth(tiny):
  """Rounding moves log-probs a little; a wrong branch in either mode would move them a lot."""
  for name in ("k31_topk_above_context", "k3_base", "linear_q_lora"):
    path, ids = tiny(name)
    truth = model_lib.score(model_lib.Model(path), ids)
    emulated = model_lib.score(model_lib.Model(path, "bf16", "bf16", "bf16"), ids)
    gaps = [
        abs(a["target_logprob"] - b["target_logprob"]) for a, b in zip(truth[:-1], emulated[:-1])
    ]
    assert 0 < np.median(gaps) < 0.03


# ---- Golden files


def load_golden(name):
  with open(os.path.join(ROOT, "tests", "golden", "model", name + ".json"),
            encoding="utf-8") as file:
    return json.load(file)


def test_spec_file_is_fresh():
  assert checkpoint.load_specs(specs_lib.OUT) == json.loads(json.dumps(SPECS))


@pytest.mark.parametrize("name", list(SPECS))
def test_golden_belongs_to_its_checkpoint(tiny, name):
  path, ids = tiny(name)
  golden = load_golden(name)
  assert golden["ids"] == ids
  assert golden["weights_sha256"] == checkpoint.digest(path)


@pytest.mark.parametrize("name", ["k31_hidden_40", "linear_nested"])
def test_golden_is_reproduced(tiny, name):
  path, ids = tiny(name)
  golden, again = load_golden(name), make_model_golden.golden(path, ids)
  assert np.allclose(golden["target_logprob"], again["target_logprob"], rtol=0, atol=1e-11)
  assert [[i for i, _ in top] for top in golden["top"]] == [[i for i, _ in t] for t in again["top"]]
  # Another library build may sum in another order, and a rounding may then fall the other way.
  for old, new in zip(golden["emulated"], again["emulated"]):
    gap = np.abs(np.subtract(old["target_logprob"], new["target_logprob"]))
    assert np.median(gap) < 1e-3


@pytest.mark.parametrize("name", ["chat", "long", "raw"])
def test_demo_golden_belongs_to_the_demo_model(name):
  with open(os.path.join(ROOT, "tests", "golden", "demo", name + ".json"), encoding="utf-8") as file:
    golden = json.load(file)
  assert golden["weights_sha256"] == checkpoint.digest(os.path.join(ROOT, "models", "demo"))
