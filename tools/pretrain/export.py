"""Checkpoint folders in the published K3 layout: writing them from trained parameters, reading them
back. Experts are packed to MXFP4, the FP32 tensors stay FP32, everything else is BF16."""

import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

from . import mxfp4
from .layers import BF16
from .parameters import is_f32
from .shapes import read_config, shapes_of_config

PREFIX = "language_model."
A_LOG_ENTRIES = 128  # the published file pads this vector with zeros
SIDE_FILES = ("generation_config.json", "tiktoken.model", "tokenizer_config.json")
WEIGHTS_FILE = "model.safetensors"
EXPERTS = ".experts."


def packed_experts(name, stacked):
    """Disk tensors of one stack [experts, out, in]."""
    codes, scales = mxfp4.quantize(stacked)
    packed = mxfp4.pack(codes)
    stem, part = name.rsplit(".", 1)
    tensors = {}
    for expert in range(stacked.shape[0]):
        base = "%s%s.%d.%s." % (PREFIX, stem, expert, part)
        tensors[base + "weight_packed"] = packed[expert].contiguous()
        tensors[base + "weight_scale"] = scales[expert].contiguous()
    return tensors


def disk_tensors(parameters):
    """{name on disk: tensor in its disk type} of the training parameters."""
    tensors = {}
    for name, parameter in parameters.items():
        value = parameter.detach().float().cpu()
        if EXPERTS in name:
            tensors.update(packed_experts(name, value))
            continue
        if name.endswith("A_log"):
            value = torch.nn.functional.pad(value, (0, A_LOG_ENTRIES - len(value)))
        tensors[PREFIX + name] = (value if is_f32(name) else value.to(BF16)).contiguous()
    return tensors


def save_checkpoint(parameters, config, source, folder):
    """Writes `folder`; tokenizer files are copied from the folder `source`."""
    os.makedirs(folder, exist_ok=True)
    for name in SIDE_FILES:
        target = os.path.join(folder, name)
        if os.path.abspath(os.path.join(source, name)) != os.path.abspath(target):
            shutil.copyfile(os.path.join(source, name), target)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)
    save_file(disk_tensors(parameters), os.path.join(folder, WEIGHTS_FILE), {"format": "pt"})


def training_tensors(disk, shapes):
    """Inverse of `disk_tensors`, in FP32; experts get their MXFP4 values."""
    tensors = {}
    for name, value in disk.items():
        name = name.removeprefix(PREFIX)
        if EXPERTS in name:
            continue
        if name.endswith("A_log"):
            value = value[:shapes.kda_heads]
        tensors[name] = value.float()
    for name in [n for n in disk if n.endswith(".0.w1.weight_packed")]:
        stem = name.removesuffix("0.w1.weight_packed")
        for part in ("w1", "w3", "w2"):
            experts = []
            for expert in range(shapes.experts):
                base = "%s%d.%s." % (stem, expert, part)
                codes = mxfp4.unpack(disk[base + "weight_packed"])
                experts.append(mxfp4.dequantize(codes, disk[base + "weight_scale"]))
            tensors[stem.removeprefix(PREFIX) + part] = torch.stack(experts)
    return tensors


def load_checkpoint(folder):
    """Returns (config, {name: FP32 tensor}) of a checkpoint folder."""
    config = read_config(folder)
    disk = load_file(os.path.join(folder, WEIGHTS_FILE))
    return config, training_tensors(disk, shapes_of_config(config))
