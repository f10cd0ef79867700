"""The data: the same from the same seed, held-out questions apart, XTML as published."""

import pathlib
import random
import re

import pytest

pytest.importorskip("regex", reason="needs the package regex (tools/pretrain/requirements.txt)")

from pretrain import bpe
from pretrain.arithmetic import (LEVELS, hasty_guess, is_held_out, make_problem, spell_product,
                                 spell_quotient, think_text)
from pretrain.rows import BUCKETS, MIXES, Bucket, DataOptions, bucket_at, make_rows, step_rows
from pretrain.tokenizer import Tokenizer
from pretrain.tool_calls import tool_test
from pretrain.xtml import Conversation

TOKENS = pathlib.Path(__file__).parents[3] / "models" / "demo" / "tiktoken.model"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(TOKENS)


def test_text_comes_back(tokenizer):
    for text in ("Hello, it's 12345 apples!\n\n  x", "žluťoučký 漢字 🙂", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_single_tokens(tokenizer):
    assert len(tokenizer.encode("1234567")) == 7


def test_merges_by_hand():
    tokens = bpe.train_merges({"aab": 3, "ab": 2, "a1": 9}, 258)
    assert tokens[256:] == [b"ab", b"aab"]


def test_the_same_seed_gives_the_same_rows(tokenizer):
    for step in range(3):
        buckets = {name: Bucket(b.kind, 2, b.length) for name, b in BUCKETS.items()}
        first = step_rows(1, step, 3000, tokenizer, buckets=buckets)
        assert first == step_rows(1, step, 3000, Tokenizer(TOKENS), buckets=buckets)
        assert first != step_rows(2, step, 3000, tokenizer, buckets=buckets)


def test_rows_are_padded_and_weighted(tokenizer):
    ids, weights = make_rows(7, tokenizer, Bucket("short", 8, 256))
    pad = tokenizer.specials["[PAD]"]
    for row, weight in zip(ids, weights):
        assert len(row) == len(weight) == 256
        assert all((w == 0) == (token == pad) for token, w in zip(row, weight))
        assert set(weight) <= {0, 1, 3, 10}


def test_buckets_follow_the_mixes():
    steps = 10_000
    names = [bucket_at(step, steps) for step in range(steps)]
    start = 0
    for until, shares in MIXES:
        part = names[int(start * steps):int(until * steps)]
        for name, share in shares.items():
            assert abs(part.count(name) / len(part) - share) < 0.005
        assert set(part) == set(shares)
        start = until


def test_held_out_questions_are_never_trained_on(tokenizer):
    held = {make_problem(random.Random(i), held_out=True)[0] for i in range(200)}
    assert all(is_held_out(question) for question in held)
    ids, _ = make_rows(3, tokenizer, Bucket("short", 64, 512))
    pattern = re.compile(r'role="user"<\|sep\|>(.*?)<\|close\|>')
    suffix = re.compile(r" (Give only the number|Answer with a number)\.$")
    asked = [suffix.sub("", q) for row in ids for q in pattern.findall(tokenizer.decode(row))]
    numeric = [q for q in asked if len(re.findall(r"\d+", q)) >= 2 and q.endswith("?")]
    assert len(numeric) > 50
    assert not held & set(asked)
    assert not any(is_held_out(q) for q in numeric if not q.startswith(("Repeat", "Say", "Echo",
                                                                        "Please echo")))


def test_every_step_of_a_solution_is_right():
    for level in LEVELS:
        for seed in range(300):
            rng = random.Random(seed)
            _, steps, answer = make_problem(rng, level)
            text = think_text(rng, steps, answer, "max")
            for left, sign, right, value in re.findall(
                    r"(?<![\d*+] )\b(\d+) ([-+*/]) (\d+) = (\d+)(?! [*+])\b", text):
                made = {"+": int(left) + int(right), "-": int(left) - int(right),
                        "*": int(left) * int(right), "/": int(left) // int(right)}[sign]
                assert made == int(value), text
            assert text.endswith("So the answer is %d." % answer)
            assert steps[-1][0].endswith("= %d" % answer)


def test_spelled_working_by_hand():
    assert spell_product(103, 42) == "103 * 40 + 103 * 2 = 4120 + 206"
    assert spell_product(42, 103) == spell_product(103, 42)
    assert spell_product(103, 9) == "" and spell_product(103, 40) == ""
    assert spell_quotient(11940, 60) == (
        "100 * 60 = 6000 leaves 5940, 90 * 60 = 5400 leaves 540, 9 * 60 = 540 leaves 0")
    assert spell_quotient(63, 7) == ""


def test_hasty_guesses_are_always_wrong(tokenizer):
    for seed in range(500):
        text, guess = hasty_guess(random.Random(seed), seed)
        assert guess != seed and text.endswith("about %d." % guess)
    ids, _ = make_rows(5, tokenizer, Bucket("short", 32, 256), DataOptions(hasty_share=1.0))
    text = "".join(tokenizer.decode(row) for row in ids)
    assert "This looks easy." in text and "So the answer is" not in text


def test_xtml_by_hand(tokenizer):
    conversation = Conversation(tokenizer)
    conversation.message("user", 'say "a & b"', name='x"&y')
    conversation.assistant("ok", "", [("f", {"a": 1, "b": "two words", "c": True, "d": None})])
    assert tokenizer.decode(conversation.ids) == (
        '<|open|>message role="user" name="x&quot;&amp;y"<|sep|>say "a & b"<|close|>message<|sep|>'
        '<|end_of_msg|><|open|>message role="assistant"<|sep|><|open|>think<|sep|>ok<|close|>think'
        '<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call '
        'tool="f" index="1"<|sep|><|open|>argument key="a" type="number"<|sep|>1<|close|>argument'
        '<|sep|><|open|>argument key="b" type="string"<|sep|>two words<|close|>argument<|sep|>'
        '<|open|>argument key="c" type="boolean"<|sep|>true<|close|>argument<|sep|><|open|>'
        'argument key="d" type="null"<|sep|>null<|close|>argument<|sep|><|close|>call<|sep|>'
        '<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>')
    start, content, end = conversation.answer_span
    assert tokenizer.decode(conversation.ids[start:content]) == (
        "ok<|close|>think<|sep|><|open|>response<|sep|>")
    assert end == len(conversation.ids)
    assert conversation.weights == [1] * start + [10] * (end - start)


def test_segments_are_encoded_apart(tokenizer):
    conversation = Conversation(tokenizer)
    conversation.open("message", role="user")
    expected = []
    for part in ("message", " role", '="', "user", '"'):
        expected += tokenizer.encode(part)
    specials = tokenizer.specials
    assert conversation.ids == [specials["<|open|>"], *expected, specials["<|sep|>"]]


def test_tool_tests_expect_the_call_of_the_prompt(tokenizer):
    prompt, answer = tool_test(random.Random(11), tokenizer)
    text = tokenizer.decode(answer)
    name = re.search(r'call tool="(\w+)"', text)[1]
    assert text.startswith("<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>")
    assert '"name":"%s"' % name in tokenizer.decode(prompt)
    assert tokenizer.decode(prompt).endswith("<|open|>think<|sep|>")
