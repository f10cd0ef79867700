"""Trains the demo model on one GPU and writes a checkpoint folder.

    python3 -m pretrain.train --out DIR                       (from tools/, on a GPU)
    python3 -m pretrain.train --smoke --out DIR               (a few steps of a tiny model)
    python3 -m pretrain.train --start ../models/demo --hasty 0.35 --steps 300 --out DIR

The same seed and number of steps give the same rows in the same order and the same initial weights.
"""

import argparse
import json
import os
import time

import torch

from .export import load_checkpoint, save_checkpoint
from .feeder import Feeder
from .kda import use_kernel_configs
from .model import Model
from .optimizer import Optimizer
from .parameters import initial_parameters, place
from .rows import BUCKETS, MIXES, Bucket, DataOptions
from .shapes import read_config, shapes_of_config, smallest_config
from .steps import Runner

WARM_UP_STEPS = 100
CONSTANT_SHARE = 0.5  # of the steps; then linear to the last factor
LAST_FACTOR = 0.02
SPARSE_FROM = 0.40  # share of the steps after which long rows attend to selected keys only
DEFAULT_STEPS = 3000  # what the shipped model was trained for
SMOKE_BUCKETS = {name: Bucket(bucket.kind, 1, 256 if bucket.kind == "short" else 512)
                 for name, bucket in BUCKETS.items()}
SMOKE_STEPS = 4
REPORT_EVERY = 200


def rate_factor(step, steps):
    """Learning-rate factor of step 0 .. steps - 1."""
    warm = min(1.0, (step + 1) / min(WARM_UP_STEPS, steps))
    left = (1 - step / steps) / (1 - CONSTANT_SHARE)
    return warm * max(LAST_FACTOR, min(1.0, left))


def steps_in(seconds, form_seconds):
    """How many steps of the mixes' mean cost fit in `seconds`."""
    mean, start = 0.0, 0.0
    for until, shares in MIXES:
        for name, share in shares.items():
            sparse = start >= SPARSE_FROM and (name, True) in form_seconds
            mean += (until - start) * share * form_seconds[name, sparse]
        start = until
    return max(1, int(seconds / mean))


class Log:
    """Prints lines and keeps them in `log.txt`."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.file = open(os.path.join(folder, "log.txt"), "w", encoding="utf-8")
        self.start = time.monotonic()

    def __call__(self, text):
        line = "%7.1f  %s" % (time.monotonic() - self.start, text)
        print(line, flush=True)
        self.file.write(line + "\n")
        self.file.flush()


class Report:
    """Means of the losses since the last line, per bucket."""

    def __init__(self, log, runner):
        self.log, self.runner = log, runner
        self.sums, self.counts = {}, {}
        self.since = time.monotonic()

    def note(self, name):
        sums = self.runner.sums
        if name in self.sums:
            self.sums[name] += sums
        else:
            self.sums[name] = sums.clone()
        self.counts[name] = self.counts.get(name, 0) + 1
        sums.zero_()

    def write(self, step, slots):
        rows = {name: [self.counts[name]] + [round(float(x) / self.counts[name], 4) for x in sums]
                for name, sums in sorted(self.sums.items())}
        now = time.monotonic()
        count = sum(self.counts.values())
        self.log("step %d, %.4f s a step, %.0f slots/s, [n, loss, index, answer, accuracy] %s" % (
            step, (now - self.since) / count, count * slots / (now - self.since),
            json.dumps(rows)))
        self.sums, self.counts, self.since = {}, {}, now


def train(options, runner, feeder, log):
    """Runs all steps; returns the seconds they took."""
    report = Report(log, runner)
    started = time.monotonic()
    for step, (name, ids, weights) in enumerate(feeder):
        form = runner.form(name, step >= SPARSE_FROM * options.steps)
        form.load(torch.from_numpy(ids.astype("int64")), torch.from_numpy(weights), step)
        runner.optimizer.set_step(step + 1, options.rate * rate_factor(step, options.steps))
        form.run()
        report.note(name)
        if (step + 1) % options.report_every == 0:
            report.write(step + 1, form.ids.numel())
    if runner.device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - started


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    models = os.path.join(os.path.dirname(__file__), "..", "..", "models", "demo")
    parser.add_argument("--out", required=True, help="folder for the checkpoint and log.txt")
    parser.add_argument("--source", default=models, help="folder with config and tokenizer files")
    parser.add_argument("--start", help="checkpoint folder to go on from (default: from nothing)")
    parser.add_argument("--seed", type=int, default=1)
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--steps", type=int, default=DEFAULT_STEPS)
    budget.add_argument("--seconds", type=float,
                        help="choose --steps so that they take about this long (see log.txt)")
    parser.add_argument("--rate", type=float, default=1.0, help="factor on the learning rates")
    parser.add_argument("--hasty", type=float, default=0.0,
                        help="share of arithmetic answers that are hasty wrong guesses")
    parser.add_argument("--workers", type=int, default=12, help="data processes")
    parser.add_argument("--no-graphs", action="store_true", help="launch kernel by kernel")
    parser.add_argument("--report-every", type=int, default=REPORT_EVERY)
    parser.add_argument("--smoke", action="store_true",
                        help="a few steps of a tiny model, CPU allowed")
    options = parser.parse_args()
    if options.smoke:
        options.steps, options.seconds, options.workers = SMOKE_STEPS, None, 1
        options.report_every = 1
    elif not torch.cuda.is_available():
        parser.error("training needs a CUDA device; --smoke runs a few tiny steps without one")
    return options


def main():
    options = parse_arguments()
    log = Log(options.out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.start:
        config, tensors = load_checkpoint(options.start)
    else:
        config = read_config(options.source)
        config = smallest_config(config) if options.smoke else config
        tensors = initial_parameters(shapes_of_config(config), options.seed)
    model = Model(shapes_of_config(config), place(tensors, device))
    log("%d parameters on %s" % (sum(t.numel() for t in tensors.values()), device))
    use_kernel_configs()
    if device.type == "cpu":
        torch.set_num_threads(1)  # tiny products: more threads only wait for each other
    graphs = device.type == "cuda" and not options.no_graphs
    if device.type == "cuda":
        torch._dynamo.config.cache_size_limit = 64  # one variant a bank size, length and so on
        model.pieces = model.pieces.compiled()
    buckets = SMOKE_BUCKETS if options.smoke else BUCKETS
    runner = Runner(model, Optimizer(model.parameters, device), buckets, device)
    form_seconds = runner.prepare(log, graphs)
    if options.seconds:
        options.steps = steps_in(options.seconds, form_seconds)
    log("seed %d, %d steps, hasty share %.2f" % (options.seed, options.steps, options.hasty))
    feeder = Feeder(options.workers, seed=options.seed, steps=options.steps, buckets=buckets,
                    tokenizer=os.path.join(options.source, "tiktoken.model"),
                    options=DataOptions(hasty_share=options.hasty))
    try:
        seconds = train(options, runner, feeder, log)
    finally:
        feeder.close()
    log("trained %d steps in %.1f s" % (options.steps, seconds))
    save_checkpoint(model.parameters, config, options.source, options.out)
    log("wrote " + options.out)


if __name__ == "__main__":
    main()
