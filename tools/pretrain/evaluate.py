"""Measures a checkpoint folder on held-out questions and prints a table with 95 % intervals.

    python3 -m pretrain.evaluate FOLDER [--json FILE] [--scale 1.0] [--parts tools,needles]

Questions come from seeds of their own. Arithmetic questions are those the checksum rule keeps out
of training; tools, texts and echoes are random draws far larger in number than training saw.
"""

import argparse
import json
import math
import os
import random as random_module
import re
import time

import torch

from .arithmetic import LEVELS, make_problem
from .decode import Decoder
from .export import load_checkpoint
from .kda import PLAIN_CHUNK, use_kernel_configs
from .model import Model, Selection
from .needles import needle_conversation
from .parameters import place
from .shapes import shapes_of_config
from .small_talk import ECHO_REQUESTS, FACTS, GREETING_ANSWERS, GREETINGS, SHORT_REPLIES, free_text
from .tokenizer import Tokenizer
from .tool_calls import tool_test
from .xtml import Conversation

Z = 1.959964  # two-sided 95 %
SEED = 4242
FACTS_A_TEXT = 8
ARITHMETIC_TOKENS, TOOL_TOKENS, TALK_TOKENS = 260, 160, 90  # most that an answer may take
# (name, tokens, texts, selection, measure the attention mass)
NEEDLES = (
    ("1K", 1024, 64, "topk", False), ("4K", 4096, 32, "topk", True),
    ("16K", 16384, 8, "topk", True), ("64K", 65536, 3, "topk", False),
    ("4K window", 4096, 24, "window", False), ("4K dense", 4096, 24, "dense", False))


def wilson(hits, count):
    """95 % interval of a share after Wilson."""
    share, square = hits / count, Z * Z
    middle = (share + square / (2 * count)) / (1 + square / count)
    spread = Z / (1 + square / count) * math.sqrt(
        share * (1 - share) / count + square / (4 * count * count))
    return max(0.0, middle - spread), min(1.0, middle + spread)


class Evaluation:
    """A model with its tokenizer; `results` maps a test's name to [hits, count]."""

    def __init__(self, folder, device, scale):
        config, tensors = load_checkpoint(folder)
        self.tokenizer = Tokenizer(os.path.join(folder, "tiktoken.model"))
        self.model = Model(shapes_of_config(config), place(tensors, device))
        self.decoder = Decoder(self.model, device)
        self.device = device
        self.scale = scale
        self.stop = self.tokenizer.specials["<|end_of_msg|>"]
        self.results = {}
        self.notes = {}

    def count(self, usual):
        return max(1, round(usual * self.scale))

    def record(self, name, hits):
        hits = list(hits)
        self.results[name] = [sum(hits), len(hits)]
        low, high = wilson(*self.results[name])
        print("%-34s %.3f  [%.3f, %.3f]  of %d" % (name, sum(hits) / len(hits), low, high,
                                                   len(hits)), flush=True)

    def chat_prompt(self, text):
        prompt = Conversation(self.tokenizer)
        prompt.thinking_effort("max")
        prompt.message("user", text)
        prompt.generation_prompt(True)
        return prompt.ids

    def responses(self, texts, tokens, temperature=0.0, seed=0):
        """What the response channel says to each user text (None without such a channel)."""
        outs = self.decoder.run([self.chat_prompt(text) for text in texts], tokens, self.stop,
                                temperature, seed)
        return [response_text(self.tokenizer.decode(out)) for out in outs]

    def arithmetic(self):
        """All levels share a batch: decoding costs by the step, hardly by the row."""
        random, count = random_module.Random(SEED), self.count(400)
        problems = [make_problem(random, level, held_out=True)
                    for level in LEVELS for _ in range(count)]
        right = self._solved(problems, 1.0)
        for place, level in enumerate(LEVELS):
            self.record("arithmetic L%d, temperature 1" % level,
                        right[place * count:(place + 1) * count])
        self.record("arithmetic all levels, greedy", self._solved(problems[::len(LEVELS)], 0.0))

    def _solved(self, problems, temperature):
        answers = self.responses([p[0] for p in problems], ARITHMETIC_TOKENS, temperature, SEED)
        return [last_number(a) == p[2] for a, p in zip(answers, problems)]

    def tools(self):
        random = random_module.Random(SEED + 1)
        tests = [tool_test(random, self.tokenizer) for _ in range(self.count(400))]
        outs = self.decoder.run([test[0] for test in tests], TOOL_TOKENS, self.stop)
        close = self.tokenizer.specials["<|close|>"]
        behind = [out[out.index(close) + 3:] if close in out else [] for out in outs]
        self.record("tool calls exact, greedy", (b == t[1] for b, t in zip(behind, tests)))
        self.notes["tool_failures"] = [
            [self.tokenizer.decode(b), self.tokenizer.decode(t[1])]
            for b, t in zip(behind, tests) if b != t[1]][:5]

    def talk(self):
        known = FACTS + SHORT_REPLIES
        answers = self.responses([q for q, _ in known] + GREETINGS, TALK_TOKENS)
        self.record("taught facts and replies, greedy",
                    (a == k[1] for a, k in zip(answers, known)))
        self.record("greetings, greedy", (a in GREETING_ANSWERS for a in answers[len(known):]))
        random = random_module.Random(SEED + 2)
        texts = [free_text(random) for _ in range(self.count(300))]
        asks = [random.choice(ECHO_REQUESTS) % text for text in texts]
        answers = self.responses(asks, TALK_TOKENS)
        self.record("echo of random text, greedy", (a == t for a, t in zip(answers, texts)))

    def needles(self):
        for name, length, texts, mode, measure in NEEDLES:
            selection = Selection(mode, measure)
            hits = []
            random = random_module.Random(SEED + length)
            for _ in range(self.count(texts)):
                hits += self._needle(random, length, selection)
            self.record("needle " + name, hits)
            if measure and selection.mass:
                mass = sum(selection.mass) / len(selection.mass)
                self.notes["attention mass kept at " + name] = mass
                print("  attention mass kept by the selection: %.3f" % mass, flush=True)

    def _needle(self, random, length, selection):
        """Whether every token of each answer is the argmax, the true answers being fed back."""
        conversation, spans = needle_conversation(random, self.tokenizer, length, FACTS_A_TEXT,
                                                  FACTS_A_TEXT)
        ids = conversation.ids
        padded = ids + [self.tokenizer.specials["[PAD]"]] * (-len(ids) % (4 * PLAIN_CHUNK))
        first = spans[0][1] - 1
        keep = torch.arange(first, len(ids), device=self.device)
        logits = self.model.logits(torch.tensor([padded], device=self.device), selection, keep)
        best = logits[0].argmax(-1).tolist()
        return [all(best[i - 1 - first] == ids[i] for i in range(low, end))
                for _, low, end in spans]


def response_text(text):
    parts = text.split("response<|sep|>")
    return parts[1].split("<|close|>")[0] if len(parts) > 1 else None


def last_number(text):
    numbers = re.findall(r"-?\d+", text or "")
    return int(numbers[-1]) if numbers else None


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--json", help="file for the counts")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all test sizes")
    parser.add_argument("--parts", default="arithmetic,tools,needles,talk")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    use_kernel_configs()
    evaluation = Evaluation(options.folder, device, options.scale)
    for part in options.parts.split(","):
        start = time.monotonic()
        getattr(evaluation, part)()
        print("%s took %.1f s" % (part, time.monotonic() - start), flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({"results": evaluation.results, "notes": evaluation.notes}, file,
                          indent=1)


if __name__ == "__main__":
    main()
