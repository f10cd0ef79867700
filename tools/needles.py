#!/usr/bin/env python3
"""Long prompts with facts hidden in filler: writes them, runs a model on them and prints what it found.

    tools/needles.py make MODEL --tokens 65536,262144,1048000 --questions 4 --out DIR
    tools/needles.py run  MODEL DIR [--perigee build/cuda/perigee] [perigee's own flags]

`make` needs the packages of tools/requirements-test.txt; `run` needs Python alone. Each prompt is a chat file for
`perigee generate --chat`: one text with eight facts, one question. `run` prints, per prompt, its tokens, the seconds and peak
memory of the whole command, whether the answer holds the fact, and the answer.
"""

import argparse
import json
import os
import random as random_module
import resource
import subprocess
import sys
import time

FACTS = 8
ROOM = 120  # tokens of the facts' sentences, the question and the chat's own tokens


def make(options):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from pretrain.needles import make_facts, question_about, text_with_facts
    from pretrain.tokenizer import Tokenizer
    tokenizer = Tokenizer(os.path.join(options.model, "tiktoken.model"))
    os.makedirs(options.out, exist_ok=True)
    for tokens in [int(t) for t in options.tokens.split(",")]:
        random = random_module.Random(4242 + tokens)
        facts = make_facts(random, FACTS)
        text = text_with_facts(random, tokenizer, facts, tokens - ROOM - 26 * FACTS)
        for i, (owner, kind, value) in enumerate(facts[:options.questions]):
            content = text + "\n\n" + question_about(random, owner, kind)
            prompt = {"messages": [{"role": "user", "content": content}]}
            path = os.path.join(options.out, "needle_%d_%d" % (tokens, i))
            with open(path + ".json", "w", encoding="utf-8") as file:
                json.dump(prompt, file)
            with open(path + ".txt", "w", encoding="utf-8") as file:
                file.write(value)
        print("%d tokens asked for, %d written" % (tokens, len(tokenizer.encode(text))))


def run(options, flags):
    names = [n[:-5] for n in os.listdir(options.folder) if n.endswith(".json")]
    names.sort(key=lambda n: [int(p) for p in n.split("_")[1:]])
    found = 0
    print("prompt,prompt_tokens,seconds,found,answer")
    for name in names:
        path = os.path.join(options.folder, name)
        with open(path + ".txt", encoding="utf-8") as file:
            value = file.read()
        start = time.monotonic()
        command = [options.perigee, "generate", options.model, "--chat", path + ".json", "--temperature", "0",
                   "--max-tokens", "80", "--json"] + flags
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print("%s failed with status %d: %s" % (name, done.returncode, done.stderr.strip()), file=sys.stderr)
            return 1
        answer = json.loads(done.stdout)
        text = answer["text"]
        hit = value in text
        found += hit
        print("%s,%s,%.1f,%s,%s" % (name, answer.get("usage", {}).get("prompt_tokens", "?"), time.monotonic() - start,
                                    "yes" if hit else "no (%s)" % value, text[-160:]), flush=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print("found %d of %d; peak memory of the host %.0f MiB" % (found, len(names), peak))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    maker.add_argument("model")
    maker.add_argument("--tokens", default="65536")
    maker.add_argument("--questions", type=int, default=4)
    maker.add_argument("--out", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("model")
    runner.add_argument("folder")
    runner.add_argument("--perigee", default="build/cuda/perigee")
    options, flags = parser.parse_known_args()
    if options.command == "make":
        return make(options)
    return run(options, flags)


if __name__ == "__main__":
    sys.exit(main())
