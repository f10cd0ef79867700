"""Training steps with fixed buffers: run kernel by kernel, or captured in CUDA graphs.

The model is so small that launching its kernels takes about as long as running them; a replayed
graph launches a whole step at once.
"""

import time

import torch

from .model import Model

INDEX_LOSS_WEIGHT = 0.3
BIAS_RATE = 0.002  # change of a router bias by the sign of its expert's load
QUERY_ROWS, QUERY_ROWS_SHORT, SHORT_LENGTH = 128, 64, 512  # rows of the indexer's loss
STATISTICS = 4  # loss, index loss, answer loss, answer accuracy


def query_rows(seed, length):
    """Half anywhere, half in the last quarter, where the choice is hardest."""
    generator = torch.Generator().manual_seed(seed)
    half = (QUERY_ROWS_SHORT if length <= SHORT_LENGTH else QUERY_ROWS) // 2
    return torch.cat([torch.randint(0, length, (half,), generator=generator),
                      torch.randint(length - length // 4, length, (half,), generator=generator)])


class StepForm:
    """One step on one bucket, with or without selection: buffers, computation, graph."""

    def __init__(self, runner, bucket, sparse):
        shape, device = (bucket.rows, bucket.length), runner.device
        self.runner = runner
        self.sparse = sparse
        self.length = bucket.length
        self.ids = torch.zeros(shape, dtype=torch.int64, device=device)
        self.weights = torch.ones(shape, device=device)
        self.rows = query_rows(0, bucket.length).to(device)
        self.graph = None

    def load(self, ids, weights, seed):
        """Copies a batch (CPU tensors) into the buffers."""
        sources = (ids.to(torch.int64), weights.float(), query_rows(seed, self.length))
        for target, source in zip((self.ids, self.weights, self.rows), sources):
            if target.is_cuda:
                source = source.pin_memory()
            target.copy_(source, non_blocking=True)

    def compute(self):
        runner = self.runner
        labels = torch.roll(self.ids, -1, 1)
        weights = torch.roll(self.weights, -1, 1)
        weights[:, -1] = 0.0
        losses = runner.model.losses(self.ids, labels, weights, self.rows, self.sparse)
        (losses.loss + losses.index * INDEX_LOSS_WEIGHT).backward()
        runner.balance_experts()
        runner.optimizer.step()
        runner.sums += torch.stack([losses.loss.detach(), losses.index.detach(),
                                    losses.answer, losses.accuracy])

    def capture(self, pool):
        """Warms up on a side stream, then captures."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.compute()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self.compute()
        self.graph = graph

    def run(self):
        if self.graph:
            self.graph.replay()
        else:
            self.compute()


class Runner:
    """All step forms of a training run."""

    def __init__(self, model: Model, optimizer, buckets, device):
        self.model = model
        self.optimizer = optimizer
        self.device = device
        self.sums = torch.zeros(STATISTICS, device=device)
        topk = model.shapes.index_topk
        self.forms = {(name, sparse): StepForm(self, bucket, sparse)
                      for name, bucket in buckets.items()
                      for sparse in ((False, True) if bucket.length > topk else (False,))}

    def form(self, name, sparse):
        return self.forms.get((name, sparse)) or self.forms[name, False]

    def prepare(self, log, graphs):
        """Compiles, warms up and captures every form; parameters come out unchanged."""
        kept = {name: p.detach().clone() for name, p in self.model.parameters.items()}
        pool = torch.cuda.graph_pool_handle() if graphs else None
        generator = torch.Generator().manual_seed(0)
        seconds = {}
        for key, form in self.forms.items():
            ids = torch.randint(0, 256, form.ids.shape, generator=generator)
            form.load(ids, torch.full(ids.shape, 10.0), 0)
            self.optimizer.set_step(1, 0.0)
            first, _ = self._timed(form)
            if graphs:
                form.capture(pool)
                form.run()
            seconds[key], loss = self._timed(form)
            log("prepared %s%s: first %.1f s, then %.4f s, loss %.3f" % (
                key[0], " selecting" if key[1] else "", first, seconds[key], loss))
        with torch.no_grad():
            for name, parameter in self.model.parameters.items():
                parameter.copy_(kept[name])
        self.optimizer.reset()
        self.sums.zero_()
        return seconds

    def _timed(self, form):
        """Runs a form once: (seconds, loss)."""
        self.sums.zero_()
        start = self._clock()
        form.run()
        seconds = self._clock() - start
        return seconds, float(self.sums[0])

    def _clock(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()

    @torch.no_grad()
    def balance_experts(self):
        """Raises the bias of experts with less than the mean load, lowers the others'."""
        rate = self.optimizer.scalars[0] * BIAS_RATE
        for layer, ends in self.model.expert_ends.items():
            ends = ends.float()
            load = torch.diff(ends, prepend=torch.zeros_like(ends[:1]))
            self.model.router_bias(layer).add_(torch.sign(load.mean() - load) * rate)
