"""Trains the tokenizer's merges on the project's own conversations.

    python3 -m pretrain.bpe OUT [--seed 5]      (from tools/; about a minute)

Words with a digit give no merges, so every digit is a token of its own.
"""

import argparse
import random as random_module
from collections import Counter

from . import words
from .needles import make_facts
from .rows import short_conversation
from .small_talk import sentence
from .tokenizer import BASE_TOKENS, SPECIAL_OFFSETS, SPLITTER, write_tokens
from .tool_calls import tool_conversation

ROUNDS = 9000
SENTENCES_A_ROUND = 6
LISTED_WORDS = (words.NAMES, words.ITEMS, words.CITIES, words.PLACES, words.ADJECTIVES, words.NOUNS,
                words.VERBS, words.COLORS, words.TOOL_VERBS, words.TOOL_NOUNS,
                words.TOOL_PARAMETERS)
INNER_COUNT, FIRST_COUNT = 120, 15  # added to each listed word, with and without a leading space


class WordCounter:
    """Stands in for a tokenizer: counts words, and every segment is one token long."""

    def __init__(self):
        self.specials = {name: 0 for name in SPECIAL_OFFSETS}
        self.words = Counter()

    def encode(self, text):
        self.words.update(SPLITTER.findall(text))
        return [0]


def count_words(seed, rounds=ROUNDS):
    """Words of a generated corpus."""
    counter, random = WordCounter(), random_module.Random(seed)
    for _ in range(rounds):
        short_conversation(random, counter)
        tool_conversation(random, counter)
        for _ in range(SENTENCES_A_ROUND):
            counter.encode(" " + sentence(random))
        for owner, kind, value in make_facts(random, 2):
            counter.encode(f"What is the {kind} of {owner}? The {kind} of {owner} is {value}.")
    for word_list in LISTED_WORDS:  # every listed word is worth a token
        for word in word_list:
            counter.words[" " + word] += INNER_COUNT
            counter.words[word] += FIRST_COUNT
    return counter.words


def _merge(parts, left, right):
    at = 0
    while at < len(parts) - 1:
        if parts[at] == left and parts[at + 1] == right:
            parts[at:at + 2] = [left + right]
        at += 1


def train_merges(word_counts, token_count=BASE_TOKENS):
    """Returns the token byte strings: 256 bytes, then merges by count (ties: the greatest pair)."""
    corpus = [([bytes([byte]) for byte in word.encode()], count)
              for word, count in word_counts.items()
              if not any(letter.isdigit() for letter in word)]
    tokens = [bytes([byte]) for byte in range(256)]
    while len(tokens) < token_count:
        pairs = Counter()
        for parts, count in corpus:
            for pair in zip(parts, parts[1:]):
                pairs[pair] += count
        if not pairs:
            raise ValueError("the corpus has no more pairs to merge at %d of %d tokens; generate "
                             "more of it" % (len(tokens), token_count))
        left, right = max(pairs.items(), key=lambda item: (item[1], item[0]))[0]
        tokens.append(left + right)
        for parts, _ in corpus:
            _merge(parts, left, right)
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", help="file to write, in the tiktoken format")
    parser.add_argument("--seed", type=int, default=5)
    arguments = parser.parse_args()
    tokens = train_merges(count_words(arguments.seed))
    write_tokens(arguments.out, tokens)
    print("%d tokens in %s" % (len(tokens), arguments.out))


if __name__ == "__main__":
    main()
