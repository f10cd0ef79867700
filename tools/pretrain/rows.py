"""Training rows: which bucket a step takes, and the padded rows of a step from its seed.

A step's rows are a pure function of (seed, step, options), whatever process makes them.
"""

import random as random_module
from dataclasses import dataclass

from .arithmetic import hasty_guess, make_problem, think_text
from .needles import needle_conversation
from .tool_calls import SILENT_WEIGHT, add_exchange, tool_conversation
from .xtml import ANSWER_WEIGHT, Conversation

STEP_SEED_STRIDE = 1_000_003  # keeps the steps of neighbouring seeds apart
GOLDEN_RATIO = 0.6180339887  # i * ratio mod 1 spreads the buckets evenly over the steps
LONG_ARITHMETIC_TENTHS = 4  # of the tool steps: arithmetic too long for the rows of a short step
FILL_SHARE = 0.62  # a short conversation gets turns until this share of its row is used


@dataclass(frozen=True)
class DataOptions:
    """`hasty_share`: part of the think texts that are wrong guesses, the room that reinforcement
    learning gets."""
    hasty_share: float = 0.0


@dataclass(frozen=True)
class Bucket:
    """Rows of one step, all padded to `length`."""
    kind: str
    rows: int
    length: int


BUCKETS = {  # 65,536 token slots each, so that every step costs about the same
    "short": Bucket("short", 256, 256),
    "tool": Bucket("tool", 128, 512),
    "needle_1k": Bucket("needle", 64, 1024),
    "needle_2k": Bucket("needle", 32, 2048),
    "needle_4k": Bucket("needle", 16, 4096),
    "needle_8k": Bucket("needle", 8, 8192),
    "needle_16k": Bucket("needle", 4, 16384),
}

MIXES = (  # (until this fraction of the steps, shares); long texts come once the short ones work
    (0.15, {"short": 0.50, "tool": 0.25, "needle_1k": 0.25}),
    (0.40, {"short": 0.45, "tool": 0.20, "needle_1k": 0.20, "needle_2k": 0.15}),
    (1.00, {"short": 0.42, "tool": 0.25, "needle_1k": 0.12, "needle_2k": 0.10, "needle_4k": 0.07,
            "needle_8k": 0.03, "needle_16k": 0.01}),
)


def bucket_at(step, steps):
    """Name of the bucket of `step` in a run of `steps`."""
    shares = next(mix for until, mix in MIXES if step < until * steps or until == 1.0)
    rest = step * GOLDEN_RATIO % 1.0
    for name, share in shares.items():
        rest -= share
        if rest < 0:
            return name
    return "short"  # rounding of the shares


def short_conversation(random, tokenizer, length=256, options=DataOptions()):
    """Arithmetic and small talk in turns."""
    conversation = Conversation(tokenizer)
    thinking = random.random() < 0.85
    effort = random.choice(["max", "max", "high", "low"])
    shown = thinking and random.random() < 0.8
    if shown:
        conversation.thinking_effort(effort)
    several = random.random() < 0.75
    while conversation.answer_span is None or (
            several and len(conversation.ids) < length * FILL_SHARE):
        if random.random() < 0.72:
            _arithmetic_turn(random, conversation, thinking, effort if shown else "high", options)
        else:
            add_exchange(random, conversation, thinking, silent=effort == "low")
    return conversation


def _arithmetic_turn(random, conversation, thinking, effort, options):
    question, steps, answer = make_problem(random)
    thought = think_text(random, steps, answer, effort)
    if thinking and random.random() < options.hasty_share:
        thought, answer = hasty_guess(random, answer)
    content = "The answer is %d." % answer
    if random.random() < 0.1:
        question += " " + random.choice(["Give only the number.", "Answer with a number."])
        content = "%d" % answer
    conversation.message("user", question)
    conversation.assistant(thought if thinking else None, content,
                           weight=ANSWER_WEIGHT if thinking else SILENT_WEIGHT)


def make_conversation(random, tokenizer, kind, length, options):
    if kind == "short":
        return short_conversation(random, tokenizer, length, options)
    if kind == "tool":
        return tool_conversation(random, tokenizer)
    if random.random() >= 0.7:
        length = random.randint(length // 2, length)
    return needle_conversation(random, tokenizer, length)[0]


def make_rows(seed, tokenizer, bucket, options=DataOptions()):
    """Returns (ids, weights), each rows x length; one conversation a row, padded with [PAD]."""
    random = random_module.Random(seed)
    pad = tokenizer.specials["[PAD]"]
    ids, weights = [], []
    while len(ids) < bucket.rows:
        conversation = make_conversation(random, tokenizer, bucket.kind, bucket.length, options)
        padding = bucket.length - len(conversation.ids)
        if padding < 0:
            continue
        ids.append(conversation.ids + [pad] * padding)
        weights.append(conversation.weights + [0] * padding)
    return ids, weights


def step_rows(seed, step, steps, tokenizer, options=DataOptions(), buckets=None):
    """Returns (bucket name, ids, weights) of one step."""
    name = bucket_at(step, steps)
    bucket = (buckets or BUCKETS)[name]
    if name == "tool" and step % 10 < LONG_ARITHMETIC_TENTHS:
        bucket = Bucket("short", bucket.rows, bucket.length)
    ids, weights = make_rows(seed * STEP_SEED_STRIDE + step, tokenizer, bucket, options)
    return name, ids, weights
