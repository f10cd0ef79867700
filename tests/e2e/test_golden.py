"""Log-probabilities against the independent PyTorch reference (tools/reference), from files it made.

The tiny checkpoints are written anew from their specifications, byte for byte as the reference had them."""

import hashlib
import json
import math
import statistics
import subprocess
import sys

import pytest
from conftest import DEMO, ROOT

GOLDEN = ROOT / "tests" / "golden" / "model"
SPECS = sorted(p.stem for p in GOLDEN.glob("*.json") if p.stem != "specs")


def slack(count):
  """How far the ratio of two medians of `count` error sizes may be from 1 by chance: for normal errors the median of
  |e| has a relative deviation of 1.167 / sqrt(count), a ratio of two of them sqrt(2) times that; four deviations."""
  return 1 + 4 * math.sqrt(2) * 1.167 / math.sqrt(count)


def load(name):
  return json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
  folder = tmp_path_factory.mktemp("checkpoints")
  subprocess.run([sys.executable, ROOT / "tools" / "reference" / "checkpoint.py", "--specs", GOLDEN / "specs.json",
                  "--all", "--out", folder], check=True)
  return folder


def scored(perigee, ids_file, model, ids, *flags):
  return perigee.json("score", model, "--ids", ids_file(ids), "--top", "5", *flags)["positions"]


def sizes(a, b):
  return [abs(x - y) for x, y in zip(a, b)]


def test_there_are_enough_shapes():
  assert len(SPECS) >= 30


@pytest.mark.parametrize("name", SPECS)
def test_reference_device_equals_the_float64_reference(perigee, ids_file, checkpoints, name):
  golden = load(name)
  positions = scored(perigee, ids_file, checkpoints / name, golden["ids"], "--device", "reference")
  assert len(positions) == len(golden["ids"])
  for p, logsumexp, target in zip(positions, golden["logsumexp"], golden["target_logprob"]):
    assert abs(p["logsumexp"] - logsumexp) < 1e-5
    assert (p["target_logprob"] is None) == (target is None)
    if target is not None:
      assert abs(p["target_logprob"] - target) < 1e-5
  for p, top in zip(positions, golden["top"]):
    for (_, got), (_, want) in zip(p["top"], top):
      assert abs(got - want) < 1e-5


def test_cpu_device_errs_as_much_as_bf16_rounding(perigee, ids_file, checkpoints):
  """The engine and the emulation of its rounding points sum in other orders, so a value near a rounding border (or a
  router's tie) may fall on the other side: their errors against the truth agree in size, not in digits."""
  pooled = {}
  for name in SPECS:
    golden = load(name)
    truth = golden["target_logprob"]
    for emulated in golden["emulated"]:
      formats = (emulated["kv_cache_dtype"], emulated["index_key_dtype"])
      positions = scored(perigee, ids_file, checkpoints / name, golden["ids"], "--kv-cache-dtype", formats[0],
                         "--index-key-dtype", formats[1])
      engine = [p["target_logprob"] for p in positions[:-1]]
      wanted, got = sizes(emulated["target_logprob"], truth), sizes(engine, truth)
      between = sizes(engine, emulated["target_logprob"])
      limit = slack(len(truth)) * statistics.median(wanted)
      assert statistics.median(got) <= limit, (name, formats)
      assert statistics.median(between) <= math.sqrt(2) * limit, (name, formats)
      all_wanted, all_got = pooled.setdefault(formats, ([], []))
      all_wanted += wanted
      all_got += got
  for formats, (wanted, got) in pooled.items():
    ratio = statistics.median(got) / statistics.median(wanted)
    print(f"{formats}: {len(got)} log-probs, median error {statistics.median(got):.2e}, {ratio:.3f} of the emulation's")
    assert ratio <= slack(len(got)), formats


@pytest.mark.parametrize("name", ["chat", "raw", "long"])
def test_demo_model_equals_the_reference(perigee, ids_file, name):
  golden = json.loads((ROOT / "tests" / "golden" / "demo" / f"{name}.json").read_text())
  weights = hashlib.sha256((DEMO / "model.safetensors").read_bytes()).hexdigest()
  assert golden["weights_sha256"] == weights, "run tools/golden/make_demo_golden.py for the new demo model"
  positions = scored(perigee, ids_file, DEMO, golden["ids"], "--device", "reference")
  worst = max(abs(p["target_logprob"] - t) for p, t in zip(positions[:-1], golden["target_logprob"]))
  assert worst < 1e-5
