"""The same request gives the same bits: chunks, batches, threads, generation against scoring."""

import json
import random

import pytest
from conftest import DEMO, ROOT

FORMATS = [("auto", "auto"), ("bf16", "bf16"), ("nvfp4", "mxfp4")]


def demo_ids(count, seed):
  """Token ids that look like text to the demo model: a golden prompt, then random ordinary ids."""
  golden = json.loads((ROOT / "tests" / "golden" / "demo" / "chat.json").read_text())["ids"]
  draw = random.Random(seed)
  return (golden + [draw.randrange(1792) for _ in range(count)])[:count]


def score(perigee, path, *flags):
  return perigee.json("score", DEMO, "--ids", path, "--top", "5", *flags)["positions"]


@pytest.mark.parametrize("latent,key", FORMATS)
def test_chunks_do_not_change_bits(perigee, ids_file, latent, key):
  path = ids_file(demo_ids(1100, 1))
  flags = ["--kv-cache-dtype", latent, "--index-key-dtype", key]
  whole = score(perigee, path, "--max-num-batched-tokens", 2048, *flags)
  assert len(whole) == 1100
  for chunk in (1, 7, 16, 64, 1000):
    if chunk == 1 and latent != "auto":
      continue  # one chunk of one token a format is enough: it takes the longest
    assert score(perigee, path, "--max-num-batched-tokens", chunk, *flags) == whole, chunk


def test_batch_mates_do_not_change_bits(perigee, ids_file):
  lists = [demo_ids(700, 2), demo_ids(3, 3), demo_ids(333, 4), demo_ids(1, 5)]
  alone = [score(perigee, ids_file(ids)) for ids in lists]
  for chunk in (5, 64, 512):
    together = perigee.json("score", DEMO, "--ids", ids_file(lists), "--top", "5", "--max-num-batched-tokens", chunk)
    assert [s["positions"] for s in together["sequences"]] == alone, chunk


def test_threads_do_not_change_bits(perigee, ids_file):
  path = ids_file(demo_ids(400, 6))
  one = score(perigee, path, "--threads", 1)
  for threads in (2, 3, 5):
    assert score(perigee, path, "--threads", threads) == one, threads


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("latent,key", FORMATS)
def test_generate_then_score_gives_the_same_log_probabilities(perigee, ids_file, temperature, latent, key):
  formats = ["--kv-cache-dtype", latent, "--index-key-dtype", key]
  prompt = demo_ids(290, 7)
  made = perigee.json("generate", DEMO, "--prompt-ids", ids_file(prompt), "--max-tokens", 90, "--temperature",
                      temperature, "--seed", 11, *formats)
  assert made["prompt_ids"] == prompt and len(made["logprobs"]) == len(made["ids"]) > 0
  for chunk in (1, 33, 1000):
    positions = score(perigee, ids_file(prompt + made["ids"]), "--max-num-batched-tokens", chunk, *formats)
    assert [p["target_logprob"] for p in positions[len(prompt) - 1:-1]] == made["logprobs"], chunk


def test_instruction_sets_do_not_change_bits(perigee, ids_file):
  path = ids_file(demo_ids(300, 9))
  plain = score(perigee, path, "--isa", "generic")
  for isa in ("avx2", "avx512", "amx"):  # a set that the machine lacks falls back to the next one
    assert score(perigee, path, "--isa", isa) == plain, isa


def test_reference_device_does_not_depend_on_chunks(perigee, ids_file):
  path = ids_file(demo_ids(300, 8))
  whole = score(perigee, path, "--device", "reference")
  assert score(perigee, path, "--device", "reference", "--max-num-batched-tokens", 13) == whole


def test_sampling_is_a_function_of_the_seed(perigee):
  call = ["generate", DEMO, "--prompt", "Say this: seven green lamps", "--max-tokens", 20, "--temperature", 5]
  first = perigee.json(*call, "--seed", 3)
  assert perigee.json(*call, "--seed", 3) == first
  assert any(perigee.json(*call, "--seed", seed)["ids"] != first["ids"] for seed in range(4, 7))
