"""Writes tests/golden/demo/*.json: what the reference model says about the demo model.

    python tools/golden/make_demo_golden.py [--model models/demo]

Run it again whenever models/demo changes: `weights_sha256` says which weights a file belongs to.
The fields are those of make_model_golden.py; `selections` holds every 64th row only.
"""

import argparse
import base64
import json
import os
import sys

import tiktoken
import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tools.golden import make_model_golden  # noqa: E402

OUT = os.path.join(ROOT, "tests", "golden", "demo")
SELECTION_STRIDE = 64

LETTERS = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT = "|".join([
    r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{LETTERS}*[\p{{Ll}}{LETTERS}+{SUFFIX}",
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{LETTERS}+[\p{{Ll}}{LETTERS}*{SUFFIX}", r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"
])

EFFORT = ("`thinking_effort` guides on how much to think in your thinking channel "
          "(not including the response channel), "
          "supported values include `low`, `medium`, `high`, and `max`.\n"
          "Now the system is invoked with `thinking_effort=max`.")


class Renderer:
  """Chat text to ids, one segment at a time."""

  def __init__(self, folder):
    ranks = {}
    with open(os.path.join(folder, "tiktoken.model"), "rb") as file:
      for line in file:
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
      added = json.load(file)["added_tokens_decoder"]
    self.special = {entry["content"]: int(number) for number, entry in added.items()}
    self.bpe = tiktoken.Encoding("demo",
                                 pat_str=SPLIT,
                                 mergeable_ranks=ranks,
                                 special_tokens=self.special)
    self.ids = []

  def control(self, name):
    self.ids.append(self.special[name])

  def text(self, body):
    self.ids += self.bpe.encode_ordinary(body)

  def open(self, tag, **attributes):
    self.control("<|open|>")
    self.text(tag)
    for key, value in attributes.items():
      for part in (" " + key, '="', value, '"'):
        self.text(part)
    self.control("<|sep|>")

  def close(self, tag):
    self.control("<|close|>")
    self.text(tag)
    self.control("<|sep|>")

  def message(self, role, body, **attributes):
    self.open("message", role=role, **attributes)
    self.text(body)
    self.close("message")
    self.control("<|end_of_msg|>")

  def answer(self, think, body):
    self.open("message", role="assistant")
    for tag, part in (("think", think), ("response", body)):
      self.open(tag)
      self.text(part)
      self.close(tag)
    self.close("message")
    self.control("<|end_of_msg|>")

  def take(self):
    ids, self.ids = self.ids, []
    return ids


def chat(r):
  r.message("system", EFFORT, type="thinking-effort")
  r.message("user", "Hello, how are you?")
  r.answer("The user greets me.", "Hello! How can I help you today?")
  r.message(
      "user", "Tom has 12 apples. He buys 7 more and gives 5 to Anna. "
      "How many apples does he have?")
  r.answer("First, 12 + 7 = 19. Then 19 - 5 = 14. So the answer is 14.", "14")
  r.message("user", "What is 23 * 4 + 8?")
  r.answer("First, 23 * 4 = 92. Then 92 + 8 = 100. So the answer is 100.", "100")
  return r.take()


def long_text(r, tokens):
  """A fact near the start, filler, a question at the end: the selection has to find the fact."""
  people = ("old teacher", "quiet farmer", "young painter", "tall sailor")
  deeds = ("walked", "waited", "sang", "rested", "worked")
  places = ("market", "bridge", "library", "harbor", "garden", "station", "tower")
  times = ("at noon", "before dawn", "in the rain")
  body, i = "The locker number of Maya is 4719.", 0
  while len(r.bpe.encode_ordinary(body)) < tokens:
    # Strides without a common factor: no two sentences near each other are alike.
    who, what, where, when = (words[i % len(words)] for words in (people, deeds, places, times))
    body += f" The {who} {what} near the {where} {when}."
    i += 1
  r.message("user", body + "\n\nWhat is the locker number of Maya?")
  r.answer("I look for the locker number of Maya.", "The locker number of Maya is 4719.")
  return r.take()


def raw_text(r):
  """Bytes beyond ASCII, numbers, blanks and code, with no chat around them."""
  r.text("Größe 1 234,5 °C – naïve façade; 北京 和 東京 are cities.\n\n"
         "  def f(x):\n    return x**2 + 17 # ok\n\tTab\r\n"
         "It's 99.9% sure, isn't it? 🙂 <|sep|> is text here. AAAAAAAA bbbbbbbb 0000000000")
  return r.take()


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--model",
                      default=os.path.join(ROOT, "models", "demo"),
                      help="checkpoint folder")
  args = parser.parse_args()
  torch.set_num_threads(1)
  os.makedirs(OUT, exist_ok=True)
  renderer = Renderer(args.model)
  for name, ids in (("chat", chat(renderer)), ("long", long_text(renderer, 640)),
                    ("raw", raw_text(renderer))):
    result = make_model_golden.golden(args.model, ids, selected=True)
    result["selections"] = [row for row in result["selections"] if row[1] % SELECTION_STRIDE == 0]
    make_model_golden.write(os.path.join(OUT, name + ".json"), result)
    print(make_model_golden.summary(name, result), flush=True)
    print("  ", repr(renderer.bpe.decode(ids)[-160:]))


if __name__ == "__main__":
  main()
