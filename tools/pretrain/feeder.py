"""Worker processes that make the rows of coming steps, each step from its own seed."""

import multiprocessing

import numpy as np

from .rows import step_rows
from .tokenizer import Tokenizer

QUEUE_DEPTH = 4  # steps a worker may be ahead


def _work(worker, workers, queue, run):
    tokenizer = Tokenizer(run["tokenizer"])
    for step in range(worker, run["steps"], workers):
        name, ids, weights = step_rows(run["seed"], step, run["steps"], tokenizer, run["options"],
                                       run["buckets"])
        queue.put((name, np.array(ids, np.uint16), np.array(weights, np.uint8)))


class Feeder:
    """Iterates over (bucket name, ids, weights) of steps 0 .. steps - 1, in order."""

    def __init__(self, workers, **run):
        """`run`: seed, steps, tokenizer (path), options, buckets (None = the usual ones)."""
        context = multiprocessing.get_context("spawn")  # a fork would copy the CUDA context
        self.steps = run["steps"]
        self.queues = [context.Queue(QUEUE_DEPTH) for _ in range(workers)]
        self.processes = [
            context.Process(target=_work, args=(i, workers, queue, run), daemon=True)
            for i, queue in enumerate(self.queues)]
        for process in self.processes:
            process.start()

    def __iter__(self):
        for step in range(self.steps):
            yield self.queues[step % len(self.queues)].get(timeout=120)

    def close(self):
        for process in self.processes:
            process.terminate()
            process.join()
