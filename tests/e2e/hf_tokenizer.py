"""Writes the demo model's tokenizer as a Hugging Face `tokenizer.json`, for clients that count tokens themselves.

A `tiktoken.model` has ranks and no merges; the merge that makes a token is found by encoding the token with the lower ranks
alone, which leaves its two parts."""

import base64
import json

SPACE = r"\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}"
UPPER = r"[^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{Han}]"
LOWER = r"[^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{Han}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
AFTER = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PIECES = "|".join([
    r"\p{Han}+", BEFORE + UPPER + "*" + LOWER + "+" + AFTER, BEFORE + UPPER + "+" + LOWER + "*" + AFTER, r"\p{N}{1,3}",
    rf" ?[^{SPACE}\p{{L}}\p{{N}}]+[\r\n]*", rf"[{SPACE}]*[\r\n]+", rf"[{SPACE}]+(?![^{SPACE}])", rf"[{SPACE}]+"])


def byte_letters():
  """The letter by which byte-level vocabularies write each byte: itself if it is printable, else one from 256 on."""
  plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = (b for b in range(256) if b not in plain)
  return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def parts(ranks, token):
  """The token cut by all merges of a lower rank than its own."""
  pieces = [token[i:i + 1] for i in range(len(token))]
  while len(pieces) > 2:
    pairs = [ranks.get(a + b, len(ranks)) for a, b in zip(pieces, pieces[1:])]
    best = min(range(len(pairs)), key=pairs.__getitem__)
    if pairs[best] >= ranks[token]:
      break
    pieces[best:best + 2] = [pieces[best] + pieces[best + 1]]
  return pieces


def write(model, folder):
  lines = (line.split() for line in (model / "tiktoken.model").read_text().splitlines() if line)
  ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
  letters = byte_letters()

  def spelled(token):
    return "".join(letters[b] for b in token)

  merges = [[spelled(p) for p in parts(ranks, token)] for token in sorted(ranks, key=ranks.get) if len(token) > 1]
  if any(len(m) != 2 for m in merges):
    raise ValueError(f"{model}/tiktoken.model holds a token that no merge makes")
  folder.mkdir()
  (folder / "tokenizer.json").write_text(json.dumps({
      "version": "1.0", "added_tokens": [],
      "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
          {"type": "Split", "pattern": {"Regex": PIECES}, "behavior": "Isolated", "invert": False},
          {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
      "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
      "model": {"type": "BPE", "vocab": {spelled(token): rank for token, rank in ranks.items()}, "merges": merges}}))
  (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
  return folder
