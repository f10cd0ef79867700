"""python -m tools.reference score MODEL --ids FILE.json [--precision float64|bf16] ..."""

import argparse
import json
import sys

import torch

from tools.reference import model as model_lib


def main():
  parser = argparse.ArgumentParser(prog="python -m tools.reference")
  commands = parser.add_subparsers(dest="command", required=True)
  score = commands.add_parser("score", help="one forward over given ids")
  score.add_argument("model", help="checkpoint folder")
  score.add_argument("--ids",
                     required=True,
                     help="JSON file: an array of ids, or an array of arrays")
  score.add_argument("--precision", choices=("float64", "bf16"), default="float64")
  score.add_argument("--kv-cache-dtype", choices=("auto", "bf16", "fp8", "nvfp4"), default="auto")
  score.add_argument("--index-key-dtype", choices=("auto", "bf16", "fp8", "mxfp4"), default="auto")
  score.add_argument("--kda",
                     choices=tuple(model_lib.KDA_FORMS),
                     default="recurrence",
                     help="token by token, or by chunks with BF16 operands")
  score.add_argument("--top", type=int, default=20)
  args = parser.parse_args()
  torch.set_num_threads(1)  # sums then never depend on the number of threads
  with open(args.ids, encoding="utf-8") as file:
    ids = json.load(file)
  model = model_lib.Model(args.model, args.precision, args.kv_cache_dtype, args.index_key_dtype,
                          args.kda)
  if ids and isinstance(ids[0], list):
    result = {"sequences": [{"positions": model_lib.score(model, one, args.top)} for one in ids]}
  else:
    result = {"positions": model_lib.score(model, ids, args.top)}
  json.dump(result, sys.stdout)
  print()
  return 0


if __name__ == "__main__":
  sys.exit(main())
