"""Writes tests/golden/model/NAME.json: what the reference model says about each tiny checkpoint.

    python tools/golden/make_model_golden.py [NAME ...]

Fields: `weights_sha256` of the checkpoint; `ids`; `logsumexp`, `target_logprob`, `top` (five [id,
log-prob] pairs a position), in float64 with nothing rounded; `emulated`, target log-probs with BF16
rounding for named cache formats; for some specs `selections` (layer, row, positions, margin to the
first one left out), `selection_slack` (the largest of these margins at which BF16 rounding alone, with BF16 caches,
chose another set) and `trace` (after each layer the residual accumulator of the last token).
"""

import argparse
import json
import os
import sys
import tempfile

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tools.golden import specs as specs_lib  # noqa: E402
from tools.reference import checkpoint, model as model_lib  # noqa: E402

OUT = os.path.join(ROOT, "tests", "golden", "model")


def cache_formats(c):
  """(latent, keys) pairs worth a golden: the default, BF16, and the smallest where widths allow."""
  if not c.index_topk:
    pairs = [("bf16", "auto"), ("fp8", "auto")]
    if c.kv_lora % 16 == 0:
      pairs.append(("nvfp4", "auto"))
    return pairs
  pairs = [("fp8", "fp8"), ("bf16", "bf16")]
  if c.kv_lora % 16 == 0 and c.index_dim % 32 == 0:
    pairs.append(("nvfp4", "mxfp4"))
  return pairs


def targets(positions):
  return [p["target_logprob"] for p in positions[:-1]]


def golden(path, ids, top=5, selected=False):
  truth = model_lib.Model(path)
  positions = model_lib.score(truth, ids, top)
  if truth.never_read():
    raise RuntimeError(f"{path}: the reference never read {truth.never_read()[:3]}")
  result = {
      "weights_sha256": checkpoint.digest(path),
      "ids": ids,
      "logsumexp": [p["logsumexp"] for p in positions],
      "target_logprob": targets(positions),
      "top": [p["top"] for p in positions]
  }
  if selected:
    result["selections"] = [
        [s.layer, s.row, s.positions, float(f"{s.margin:.6g}")] for s in truth.selections
    ]
    result["trace"] = [layer[-1].tolist() for layer in truth.trace]
    rounded = model_lib.Model(path, "bf16", "bf16", "bf16")
    model_lib.score(rounded, ids, 1)
    result["selection_slack"] = max(
        [s.margin for s, r in zip(truth.selections, rounded.selections) if s.positions != r.positions],
        default=0.0)
  result["emulated"] = []
  for latent, keys in cache_formats(truth.c):
    emulated = model_lib.score(model_lib.Model(path, "bf16", latent, keys), ids, 1)
    values = [float(f"{value:.9g}") for value in targets(emulated)]
    result["emulated"].append({
        "kv_cache_dtype": latent,
        "index_key_dtype": keys,
        "target_logprob": values
    })
  return result


def summary(name, result):
  truth = torch.tensor(result["target_logprob"])
  parts = []
  for entry in result["emulated"]:
    gap = (torch.tensor(entry["target_logprob"]) - truth).abs()
    cache = f"{entry['kv_cache_dtype']}+{entry['index_key_dtype']}"
    parts.append(f"{cache} mean {gap.mean():.1e} median {gap.median():.1e} max {gap.max():.1e}")
  head = f"{name}: {len(result['ids'])} tokens, mean log-prob {truth.mean():.3f}"
  return f"{head}; |emulated - truth| {'; '.join(parts)}"


def write(path, result):
  with open(path, "w", encoding="utf-8") as file:
    json.dump(result, file, separators=(",", ":"))
    file.write("\n")


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("names", nargs="*", help="specs to write; none: all of them")
  args = parser.parse_args()
  torch.set_num_threads(1)
  specs_lib.main()
  for spec in specs_lib.specs():
    if args.names and spec["name"] not in args.names:
      continue
    with tempfile.TemporaryDirectory() as folder:
      checkpoint.write_folder(spec, folder)
      result = golden(folder, checkpoint.token_ids(spec), selected=spec["selected"])
    write(os.path.join(OUT, spec["name"] + ".json"), {"spec": spec["name"], **result})
    print(summary(spec["name"], result), flush=True)


if __name__ == "__main__":
  main()
