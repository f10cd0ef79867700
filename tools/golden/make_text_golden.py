"""Writes tests/golden/text/*.json: what the text room must give for tokens, JSON, chat prompts and model output.

Everything here is written apart from the C++ code and in another way: OpenAI's `tiktoken` encodes, the `regex` package
splits, Python's own `json` prints, and the reader of model output works on a finished answer, not on a stream.

    pip install tiktoken regex
    python3 tools/golden/make_text_golden.py            # from the repository's root; needs models/demo
"""
import argparse
import base64
import json
import pathlib
import random
import unicodedata

import regex
import tiktoken

from text_chat import chat_golden
from text_output import output_golden

WORD_START = r"[^\r\n\p{L}\p{N}]?"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT = "|".join([
    r"[\p{Han}]+", WORD_START + UPPER + "*" + LOWER + "+" + ENDING,
    WORD_START + UPPER + "+" + LOWER + "*" + ENDING, r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"
])
SLICE_CHARS, RUN_CHARS = 400_000, 25_000


class Oracle:
  """The published tokenizer's behaviour around tiktoken."""

  def __init__(self, folder):
    model = (folder / "tiktoken.model").read_bytes()
    self.fnv1a = fnv1a(model)
    ranks = {}
    for line in model.splitlines():
      token, rank = line.split()
      ranks[base64.b64decode(token)] = int(rank)
    named = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    self.base = len(ranks)
    ids = range(self.base, self.base + 256)
    self.special = {
        named[str(i)]["content"] if str(i) in named else f"<|reserved_token_{i}|>": i for i in ids
    }
    self.core = tiktoken.Encoding("k3", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens=self.special)
    self.split = regex.compile(SPLIT, regex.V1)

  @staticmethod
  def slices(text):
    for at in range(0, len(text), SLICE_CHARS):
      part = text[at:at + SLICE_CHARS]
      start = run = 0
      for i, char in enumerate(part):
        same = i > 0 and char.isspace() == part[i - 1].isspace()
        run = run + 1 if same else 1
        if run > RUN_CHARS:
          yield part[start:i]
          start, run = i, 1
      yield part[start:]

  def encode(self, text, control=False):
    ids = []
    for part in self.slices(text):
      ids += self.core.encode(part, allowed_special="all") if control else \
          self.core.encode_ordinary(part)
    return ids

  def pieces(self, text):
    found = self.split.findall(text)
    assert "".join(found) == text
    assert [i for piece in found for i in self.core.encode_ordinary(piece)] == \
        self.core.encode_ordinary(text), "tiktoken and the regex package split differently"
    return found


# ---------------------------------------------------------------------------------------------- tokens


def plain_texts():
  texts = [
      "", " ", "\n", "a", "Hello, world!", "a b", "a  b", "a    b", "   hello", "hello   ", "a \t \t b",
      "tabs\t\t\tx", "x    !", "x    7", "line1\nline2", "line1\r\nline2\r\n\r\nline3",
      "text   \n   more\n\n", " \n \n x", "你好世界", "你好hello世界", "hello你好 world", "你好。世界！「引用」、々〇", "日本語のテキスト",
      "カタカナ・ひらがなー", "한국어 텍스트", "1234567890", "3.14159 and 1,234,567", "١٢٣٤ ⅷ ½ ²", "it's IT'S Don't DON'T",
      "we're WE'RE you've YOU'VE I'm I'M I'll I'LL he'd HE'D", "it’s 'quoted' 'tis ''s", "a'ſ b'S",
      "helloWorld", "McDonald HTTPServer XMLHttpRequest", "ABCdef ABC", "ǅungla ǅ", "naïve café über",
      "e\u0301a\u0300 \u0301x", "Привет, мир!", "مرحبا بالعالم", "שלום עולם", "สวัสดีชาวโลก", "नमस्ते दुनिया",
      "🙂🙃 👨‍👩‍👧 🇩🇪 ❤️", "a\x00b\x01c\x7f", "x\u180ey \u00a0\u2003z\u3000w", "a\x1c\x1d b\u0085c\u2028d",
      "foo_bar-baz/qux.h:12", "if (x == 0) {\n    return -1;\n}\n",
      "```json\n{\"a\": [1, 2.5e-3, null]}\n```", "https://example.org/?q=a%20b&c=d#e", "\u02b0\u02b1 ˈstrɛs",
      "K\u212a ſ ß ẞ", "𝒜𝒷𝒸 𝟘𝟙", "〆〇㈠ ⺀⼀ 𖿰", "\ufeffbom", "...   ...\r\n...", "!?!?\n\n\n!",
      "The quick brown fox jumps over the lazy dog. " * 3,
      '<|open|>message role="user"<|sep|>hi<|close|>message<|sep|><|end_of_msg|>', "[BOS][EOS][PAD]",
      "<|reserved_token_1800|> <|im_end|> <|kimi_image_placeholder|> <|media_pad|>"
  ]
  rng = random.Random(7)
  blocks = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x900, 0xE7F),
            (0x1100, 0x11FF), (0x1E00, 0x206F), (0x20A0, 0x2BFF), (0x2E80, 0x30FF), (0x3400, 0x9FFF),
            (0xAC00, 0xD7A3), (0xF900, 0xFFEF), (0x10000, 0x1F9FF), (0x20000, 0x2FA1F)]
  spaces = [" ", " ", "  ", "\n", "\r\n", "\t", "\u3000", "'s", "'", "-", "7", "42"]
  for _ in range(60):
    chars = []
    for _ in range(rng.randint(5, 120)):
      low, high = rng.choice(blocks)
      chars.append(rng.choice(spaces) if rng.random() < 0.3 else assigned(rng, low, high))
    texts.append("".join(chars))
  return texts


def assigned(rng, low, high):
  """A character old enough for every Unicode version in use."""
  while True:
    char = chr(rng.randint(low, high))
    if unicodedata.ucd_3_2_0.category(char) not in ("Cn", "Cs"):
      return char


def long_texts():
  """Too long to store: a unit and how often it is repeated; only a digest of the ids is kept."""
  return [("a", 30_000), ("a", 400_001), (" ", 60_000), ("\n", 26_000), ("A", 26_000), ("好", 27_000),
          ("ab  ", 110_000), ("7", 25_001), ("x y", 150_000), ("e\u0301", 13_000), ("a" * 24_999 + " ", 20),
          ("<|open|>", 4_000)]


def fnv1a(data):
  """The digest of base/rng.h, as hexadecimal text."""
  value = 0xCBF29CE484222325
  for byte in data:
    value = ((value ^ byte) * 0x100000001B3) % 2**64
  return f"{value:016x}"


def id_digest(ids):
  return fnv1a(",".join(map(str, ids)).encode())


def tokenizer_golden(oracle):
  cases = [{
      "text": text,
      "pieces": [len(piece.encode()) for piece in oracle.pieces(text)],
      "ids": oracle.encode(text),
      "control_ids": oracle.encode(text, control=True)
  } for text in plain_texts()]
  for name in sorted(oracle.special, key=oracle.special.get):
    cases.append({
        "text": f"x{name}y",
        "pieces": [len(p.encode()) for p in oracle.pieces(f"x{name}y")],
        "ids": oracle.encode(f"x{name}y"),
        "control_ids": oracle.encode(f"x{name}y", control=True)
    })
  longs = []
  for unit, times in long_texts():
    ids, control = oracle.encode(unit * times), oracle.encode(unit * times, control=True)
    longs.append({
        "unit": unit,
        "times": times,
        "count": len(ids),
        "fnv1a": id_digest(ids),
        "control_count": len(control),
        "control_fnv1a": id_digest(control)
    })
  return {"tokenizer_fnv1a": oracle.fnv1a, "cases": cases, "long": longs}


# ---------------------------------------------------------------------------------------------- JSON


def json_golden():
  numbers = [
      "0", "-0", "1", "-1", "1.0", "-0.0", "1e5", "1E5", "1e15", "1e16", "123456789012345678", "0.0001",
      "0.00001", "1.5e-7", "2.5", "100.0", "123456789.125", "1e22", "1e-400", "-1e-400", "9007199254740993",
      "9007199254740993.0", "18446744073709551616", "-9223372036854775809", "3.141592653589793238", "5e-324",
      "1.7976931348623157e308", "0.1", "12345678901234567.0", "123456789012345680.0", "1" + "0" * 300,
      "1e100", "2e-5", "0.30000000000000004"
  ]
  rng = random.Random(3)
  numbers += [repr(rng.uniform(-1, 1) * 10**rng.randint(-30, 30)) for _ in range(200)]
  texts = numbers + [
      '{"b": 1, "a": {"d": [], "c": {}}, "é": "ü", "𝒜": 1, "\\uffff": 2}',
      '[1, 2.50, true, false, null, "x"]',
      '"\\u0000\\u001f\\b\\f\\n\\r\\t\\"\\\\\\/ \\u007f\\u2028 \\ud83d\\ude42 ü"', '{"a": 1, "b": 2, "a": 3}',
      ' \n[ ]\t', '{"": "", " ": " "}', '[[[[]]], {"x": [{}]}]',
      '{"a": {"z": 1, "b": [{"y": 1, "x": 2}]}, "B": 0}'
  ]
  cases = []
  for text in texts:
    value = json.loads(text)
    cases.append({
        "text": text,
        "default": json.dumps(value, ensure_ascii=False),
        "compact_sorted": json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    })
  return {"cases": cases}


def write(path, value):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n")
  print(path, path.stat().st_size, "bytes")


def main():
  root = pathlib.Path(__file__).resolve().parents[2]
  options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  options.add_argument("--model", type=pathlib.Path, default=root / "models/demo")
  options.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/text")
  args = options.parse_args()
  oracle = Oracle(args.model)
  write(args.out / "tokenizer.json", tokenizer_golden(oracle))
  write(args.out / "json.json", json_golden())
  write(args.out / "chat.json", chat_golden(oracle))
  write(args.out / "output.json", output_golden())


if __name__ == "__main__":
  main()
