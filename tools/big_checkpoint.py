#!/usr/bin/env python3
"""Writes a checkpoint of real K3.1 shapes with random weights, to measure loading; and times the safetensors library on it.

    tools/big_checkpoint.py make CONFIG.json DIR [--layers 5] [--experts 64] [--shards 4]
    tools/big_checkpoint.py time DIR [--device cuda:0] [--repeat 3]

`make` keeps every width of the configuration and takes its first layers and fewer experts: about 12 GB as it stands, in shards
whose tensors follow one another as in published checkpoints. It needs NumPy. `time` needs torch and safetensors; it opens each
shard and moves each tensor to the device, the way most programs load, and prints seconds after torch and the device are ready.
"""

import argparse
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

PREFIX = "language_model."
CHUNK = 1 << 26


def small_config(path, layers, experts):
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config.pop("vision_config", None)
    text = config["text_config"]
    text["num_hidden_layers"] = layers
    text["num_experts"] = experts
    linear = text["linear_attn_config"]
    for key in ("full_attn_layers", "kda_layers"):
        linear[key] = [layer for layer in linear[key] if layer <= layers]
    return config


def make(options):
    import numpy as np
    from tools.reference import config as config_lib
    from tools.reference import shapes
    config = small_config(options.config, options.layers, options.experts)
    os.makedirs(options.folder, exist_ok=True)
    with open(os.path.join(options.folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)
    rows = []
    for t in shapes.text_tensors(config_lib.parse_config(config)):
        size = {"BF16": 2, "F32": 4, "U8": 1}[t.dtype]
        for dim in t.dims:
            size *= dim
        rows.append((t, size))
    total = sum(size for _, size in rows)
    random = np.random.default_rng(1)
    noise = random.integers(0, 256, CHUNK, dtype=np.uint8)
    bf16 = (random.standard_normal(CHUNK // 2).astype(np.float32) * 0.02).view(np.uint32) >> 16
    pieces = {"BF16": bf16.astype("<u2").tobytes(), "F32": np.zeros(CHUNK // 4, "<f4").tobytes(), "U8": noise.tobytes(),
              "scale": (118 + noise % 3).astype(np.uint8).tobytes()}
    shards, held = [[]], 0
    for row in rows:
        if held > total / options.shards:
            shards.append([])
            held = 0
        shards[-1].append(row)
        held += row[1]
    weight_map = {}
    for number, shard in enumerate(shards):
        name = "model-%05d-of-%05d.safetensors" % (number + 1, len(shards))
        header, at = {}, 0
        for t, size in shard:
            header[PREFIX + t.name] = {"dtype": t.dtype, "shape": list(t.dims), "data_offsets": [at, at + size]}
            weight_map[PREFIX + t.name] = name
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(options.folder, name), "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for t, size in shard:
                piece = pieces["scale" if t.kind == "mxfp4_scale" else t.dtype]
                for begin in range(0, size, CHUNK):
                    file.write(piece[:min(CHUNK, size - begin)])
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    with open(os.path.join(options.folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump(index, file)
    print("%d tensors, %.2f GB in %d shards" % (len(rows), total * 1e-9, len(shards)))


def measure(options):
    import torch
    from safetensors import safe_open
    torch.zeros(1, device=options.device)
    names = sorted(n for n in os.listdir(options.folder) if n.endswith(".safetensors"))
    for _ in range(options.repeat):
        start, size, held = time.monotonic(), 0, []
        for name in names:
            with safe_open(os.path.join(options.folder, name), framework="pt", device=options.device) as file:
                for key in file.keys():
                    tensor = file.get_tensor(key)
                    size += tensor.numel() * tensor.element_size()
                    held.append(tensor)
        torch.cuda.synchronize()
        seconds = time.monotonic() - start
        print("safetensors library,%.3f s,%.2f GB,%.2f GB/s" % (seconds, size * 1e-9, size * 1e-9 / seconds), flush=True)
        del held
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    maker.add_argument("config")
    maker.add_argument("folder")
    maker.add_argument("--layers", type=int, default=5)
    maker.add_argument("--experts", type=int, default=64)
    maker.add_argument("--shards", type=int, default=4)
    timer = commands.add_parser("time")
    timer.add_argument("folder")
    timer.add_argument("--device", default="cuda:0")
    timer.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    make(options) if options.command == "make" else measure(options)


if __name__ == "__main__":
    main()
