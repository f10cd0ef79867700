"""Checkpoint folders: a small reader and writer of safetensors, in NumPy."""

import json
import os

import numpy as np

from tools.reference import formats

PREFIX = "language_model."
_TYPES = {"BF16": np.dtype("<u2"), "F32": np.dtype("<f4"), "U8": np.dtype("u1")}


def write_safetensors(path, tensors):
  """`tensors`: list of (name, type on disk, array of codes or values)."""
  header, offset = {"__metadata__": {"format": "pt"}}, 0
  for name, dtype, array in tensors:
    header[name] = {
        "dtype": dtype,
        "shape": list(array.shape),
        "data_offsets": [offset, offset + array.nbytes]
    }
    offset += array.nbytes
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)  # the data starts at a multiple of 8
  with open(path, "wb") as file:
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for name, dtype, array in tensors:
      if array.dtype != _TYPES[dtype]:
        raise TypeError(f"{name}: {array.dtype} is not how {dtype} is stored")
      file.write(np.ascontiguousarray(array).tobytes())


class Folder:
  """Reads tensors by their name without the prefix, from one file or from shards."""

  def __init__(self, path):
    self._place = {}
    self._maps = {}
    self.unread = set()
    index = os.path.join(path, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
      with open(index, encoding="utf-8") as file:
        files = sorted(set(json.load(file)["weight_map"].values()))
    for name in files:
      self._open(os.path.join(path, name))

  def _open(self, path):
    with open(path, "rb") as file:
      size = int.from_bytes(file.read(8), "little")
      header = json.loads(file.read(size))
    self._maps[path] = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + size)
    for name, entry in header.items():
      if name == "__metadata__":
        continue
      short = name.removeprefix(PREFIX)
      if short in self._place:
        raise ValueError(f"{path}: tensor {name} is there twice")
      self._place[short] = (path, entry)
      self.unread.add(short)

  def __contains__(self, name):
    return name in self._place

  def codes(self, name):
    """The array as stored: uint16 for BF16."""
    if name not in self._place:
      raise KeyError(f"the checkpoint has no tensor {name}")
    path, entry = self._place[name]
    begin, end = entry["data_offsets"]
    self.unread.discard(name)
    raw = np.array(self._maps[path][begin:end])
    return raw.view(_TYPES[entry["dtype"]]).reshape(entry["shape"])

  def values(self, name):
    """The array as float64."""
    codes = self.codes(name)
    if codes.dtype == np.uint16:
      codes = formats.bf16_values(codes)
    return codes.astype(np.float64)
