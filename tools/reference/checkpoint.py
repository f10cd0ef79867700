"""Writes the tiny checkpoint folders that the golden tests load. Needs NumPy only.

    python tools/reference/checkpoint.py --specs tests/golden/model/specs.json --spec NAME --out DIR

The same name gives the same bytes on every machine: a value is a function of (seed, tensor name,
element index) through an integer hash, and no library function of floating point is called. `--out`
receives config.json and the weights; `--all` writes every spec to a folder of its own name.
"""

import argparse
import hashlib
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tools.reference import config as config_lib  # noqa: E402
from tools.reference import folder, formats, shapes  # noqa: E402

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def fnv1a64(text):
  value = 0xCBF29CE484222325
  for byte in text.encode():
    value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
  return value


def splitmix64(x):
  """The finaliser of splitmix64 on an array of uint64."""
  x = np.asarray(x, dtype=np.uint64)
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


def hashes(seed, name, count):
  """uint64[count]: element i is splitmix64(key + (i + 1) * gamma), key from seed and name."""
  with np.errstate(over="ignore"):
    key = splitmix64(np.uint64(seed) * GOLDEN_GAMMA ^ np.uint64(fnv1a64(name)))
    return splitmix64(key + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN_GAMMA)


def uniform(seed, name, count):
  """Doubles in [0, 1)."""
  return (hashes(seed, name, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bell(seed, name, count):
  """Doubles of mean 0 and deviation 1: the sum of four 16-bit numbers, so |x| < 3.47."""
  h = hashes(seed, name, count)
  total = sum(((h >> np.uint64(16 * i)) & np.uint64(0xFFFF)).astype(np.int64) for i in range(4))
  return (total - 131070).astype(np.float64) * (1.0 / (65536.0 * 0.5773502691896258))


# In-projections keep a normed row near deviation 0.7. Queries and routers are sharper, so that
# attention and routing have something to decide; what routing adds is smaller, so that one choice
# that BF16 rounding turns does not change every later number.
GAIN = {
    "linear": 0.7,
    "query": 1.0,
    "beta": 1.4,
    "router": 1.4,
    "res_query": 0.9,
    "out": 0.5,
    "routed_out": 0.2,
    "head": 0.8
}


def fill(tensor, spec, config):
  """float64 values of one tensor."""
  seed, name = spec["seed"], tensor.name
  n = int(np.prod(tensor.dims))
  kind = tensor.kind
  if kind in GAIN:
    values = bell(seed, name, n) * (GAIN[kind] / np.sqrt(tensor.dims[-1]))
  elif kind == "embedding":
    values = bell(seed, name, n) * 0.8
  elif kind == "norm":
    values = 1.0 + 0.2 * bell(seed, name, n)
  elif kind == "bias":
    values = 0.2 * bell(seed, name, n)
  elif kind == "router_bias":
    values = 0.3 * (uniform(seed, name, n) - 0.5)
  elif kind == "conv":
    values = (0.3 * bell(seed, name, n)).reshape(tensor.dims)
    values[:, :, -1] += 0.6  # the current token leads, as in a trained model
  elif kind == "a_log":
    values = 2.5 * uniform(seed, name, n) - 1.5
    values[config.kda_heads:] = 0.0
  elif kind == "dt_bias":
    values = 7.0 * uniform(seed, name, n) - 5.0
  else:
    raise ValueError(f"no rule fills {name} ({kind})")
  return values.reshape(tensor.dims)


def mxfp4_pair(packed, scale, spec):
  """The two stored arrays of one routed matrix."""
  rows, half = packed.dims
  matrix = bell(spec["seed"], packed.name, rows * half * 2).reshape(rows, half * 2)
  codes, scales = formats.mxfp4_encode(matrix * (0.9 / np.sqrt(half * 2)))
  assert scales.shape == scale.dims
  return codes, scales


def tensors(spec):
  """Yields (name without prefix, type on disk, array of codes)."""
  config = config_lib.parse_config(spec["config"])
  table = iter(shapes.text_tensors(config, spec.get("a_log_size")))
  for tensor in table:
    if tensor.kind == "mxfp4":
      scale = next(table)
      codes, scales = mxfp4_pair(tensor, scale, spec)
      yield tensor.name, "U8", codes
      yield scale.name, "U8", scales
    elif tensor.dtype == "F32":
      yield tensor.name, "F32", fill(tensor, spec, config).astype(np.float32)
    else:
      yield tensor.name, "BF16", formats.bf16_bits(fill(tensor, spec, config)).reshape(tensor.dims)


def token_ids(spec):
  """The ids of the spec's golden sequence."""
  vocab = spec["config"].get("text_config", spec["config"])["vocab_size"]
  return [int(h % np.uint64(vocab)) for h in hashes(spec["seed"], "ids", spec["tokens"])]


def write_folder(spec, out):
  os.makedirs(out, exist_ok=True)
  with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
    json.dump(spec["config"], file, indent=1)
  prefix = spec["prefix"]
  rows = [(prefix + name, dtype, array) for name, dtype, array in tensors(spec)]
  shards = spec["shards"]
  if shards == 1:
    folder.write_safetensors(os.path.join(out, "model.safetensors"), rows)
    return
  weight_map = {}
  for shard in range(shards):
    part = rows[shard::shards]  # dealt out, so that a layer's tensors lie in several files
    name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
    folder.write_safetensors(os.path.join(out, name), part)
    weight_map.update((row[0], name) for row in part)
  total = sum(array.nbytes for _, _, array in rows)
  with open(os.path.join(out, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
    json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file, indent=1)


def digest(path):
  """SHA-256 over the weight files of a folder, in the order of their names."""
  total = hashlib.sha256()
  for name in sorted(os.listdir(path)):
    if name.endswith(".safetensors"):
      with open(os.path.join(path, name), "rb") as file:
        total.update(file.read())
  return total.hexdigest()


def load_specs(path):
  with open(path, encoding="utf-8") as file:
    return {spec["name"]: spec for spec in json.load(file)["specs"]}


def main():
  parser = argparse.ArgumentParser(description="Writes a deterministic tiny checkpoint folder.")
  parser.add_argument("--specs", required=True, help="tests/golden/model/specs.json")
  parser.add_argument("--spec", help="name of the spec to write")
  parser.add_argument("--all", action="store_true", help="write all specs, each to OUT/NAME")
  parser.add_argument("--out", required=True, help="folder to write")
  args = parser.parse_args()
  specs = load_specs(args.specs)
  if args.all:
    for name, spec in specs.items():
      write_folder(spec, os.path.join(args.out, name))
    return 0
  if args.spec not in specs:
    print(f"--spec {args.spec}: {args.specs} has no such spec", file=sys.stderr)
    return 2
  write_folder(specs[args.spec], args.out)
  return 0


if __name__ == "__main__":
  sys.exit(main())
