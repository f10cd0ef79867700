"""`perigee plan`: the published capacities, what scripts read, and bad input in one sentence."""

import json

import pytest
from conftest import DEMO, ROOT

K31 = ROOT / "tests" / "golden" / "config" / "k31_config.json"


@pytest.mark.parametrize("latent, width, pool, tokens", [
  ("fp8", 1, 51_660_000_000, 3.04), ("nvfp4", 1, 52_160_000_000, 4.49),
  ("fp8", 8, 46_300_000_000, 21.8), ("nvfp4", 8, 46_610_000_000, 32.1),
])
def test_published_capacities(perigee, latent, width, pool, tokens):
  plan = perigee.json("plan", K31, "--tensor-parallel-size", 8, "--decode-context-parallel-size", width,
                      "--kv-cache-dtype", latent, "--index-key-dtype", "fp8", "--pool-bytes", pool)
  assert abs(plan["tokens"] / 1e6 - tokens) < 0.004 * tokens
  assert plan["block_tokens"] == 2048
  assert plan["tokens"] == plan["rows"] * plan["block_tokens"] * width
  assert plan["row_bytes"] == {"fp8": 34_799_616, "nvfp4": 23_789_568}[latent]
  assert [len(g["layers"]) for g in plan["groups"]] == [24, 23, 23, 23]


def test_text_shows_the_row(perigee):
  text = perigee.run("plan", K31, "--tensor-parallel-size", 8, "--pool-bytes", 10**11).stdout
  for words in ("2048 tokens", "34799616 bytes", "full contexts", "23 layers"):
    assert words in text


def test_what_a_device_leaves(perigee):
  plan = perigee.json("plan", DEMO, "--device-memory-bytes", 10**9, "--gpu-memory-utilization", 0.5, "--max-model-len", 8192)
  used = plan["bytes"]["rows"] + plan["bytes"]["weights"] + plan["bytes"]["open_chunks"] + plan["bytes"]["workspace"]
  assert used <= 5 * 10**8 < used + plan["row_bytes"]


@pytest.mark.parametrize("arguments, words", [
  ((K31,), "--pool-bytes"),
  ((K31, "--pool-bytes", 10**9, "--tensor-parallel-size", 7), "--tensor-parallel-size 7"),
  ((K31, "--pool-bytes", 10**9, "--tensor-parallel-size", 8, "--decode-context-parallel-size", 3),
   "--decode-context-parallel-size 3"),
  ((K31, "--pool-bytes", 10**9, "--max-model-len", 2**40), "--max-model-len"),
  ((K31, "--pool-bytes", 10**9, "--kv-cache-dtype", "int4"), "--kv-cache-dtype"),
  ((K31, "--device-memory-bytes", 10**9), "no row"),
  ((ROOT / "nowhere", "--pool-bytes", 10**9), "nowhere"),
])
def test_bad_input(perigee, arguments, words):
  assert words in perigee.refusal("plan", *arguments)
