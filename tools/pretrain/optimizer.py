"""Muon for matrices, AdamW for the rest. Every changing number is a tensor on the device, so that a
whole step can be captured in a CUDA graph and replayed."""

import torch

from .layers import BF16

MUON_RATE, ADAM_RATE = 0.02, 0.003
DECAY = 0.05  # times the learning rate, on Muon's matrices
MOMENTUM_START, MOMENTUM_END, MOMENTUM_STEPS = 0.85, 0.95, 300
ADAM_FIRST, ADAM_SECOND, ADAM_EPS = 0.9, 0.98, 1e-8
EMBEDDING_FACTOR = 3.0  # rows of the table are seen rarely
INDEXER_FACTOR = 0.3  # the indexer follows a moving target: at full rate it does not settle
SMALLEST_MATRIX = 64  # narrower ones (gates, heads) go to AdamW
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def orthogonalize(matrices):
    """Brings the singular values of [..., rows, columns] near 1 by a quintic iteration in BF16."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.to(BF16)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-2, -1)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.transpose(-2, -1)
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.transpose(-2, -1) if tall else x


def uses_muon(name, tensor):
    if name in ("model.embed_tokens.weight", "lm_head.weight") or name.endswith("conv1d.weight"):
        return False
    return tensor.ndim == 3 or (tensor.ndim == 2 and min(tensor.shape) >= SMALLEST_MATRIX)


class Optimizer:
    """`set_step` before each `step`; `step` reads and clears the gradients."""

    def __init__(self, parameters, device):
        self.parameters = parameters
        learnt = {name: p for name, p in parameters.items() if p.requires_grad}
        self.muon_groups = {}  # parameters of one matrix shape are orthogonalised together
        for name, p in learnt.items():
            if uses_muon(name, p):
                self.muon_groups.setdefault(tuple(p.shape[-2:]), []).append(name)
        self.adam_names = [name for name, p in learnt.items() if not uses_muon(name, p)]
        self.momenta = {name: torch.zeros_like(p) for name, p in learnt.items()}
        self.squares = [torch.zeros_like(learnt[name]) for name in self.adam_names]
        self.scalars = torch.zeros(4, device=device)  # rate factor, momentum, two bias corrections

    def reset(self):
        """Forgets all history, in place: captured graphs hold these buffers."""
        for buffer in [*self.momenta.values(), *self.squares]:
            buffer.zero_()

    def set_step(self, number, rate_factor):
        """Step `number` counts from 1; `rate_factor` scales both learning rates."""
        progress = min(1.0, number / MOMENTUM_STEPS)
        momentum = MOMENTUM_START + (MOMENTUM_END - MOMENTUM_START) * progress
        self.scalars.copy_(torch.tensor([rate_factor, momentum, 1 - ADAM_FIRST ** number,
                                         1 - ADAM_SECOND ** number]))

    def gradients(self, names):
        """Gradients in FP32; a parameter that took no part (layer 0 mixes one row) counts as 0."""
        return [self.parameters[name].grad if self.parameters[name].grad is not None
                else torch.zeros_like(self.parameters[name]) for name in names]

    @torch.no_grad()
    def step(self):
        for shape, names in self.muon_groups.items():
            self._muon(shape, names)
        self._adam()
        for parameter in self.parameters.values():
            parameter.grad = None

    def _muon(self, shape, names):
        factor, momentum = self.scalars[0], self.scalars[1]
        gradients = self.gradients(names)
        momenta = [self.momenta[name] for name in names]
        torch._foreach_mul_(momenta, momentum)
        torch._foreach_add_(momenta, torch._foreach_mul(gradients, 1 - momentum))
        ahead = torch._foreach_add(torch._foreach_mul(momenta, momentum),
                                   torch._foreach_mul(gradients, 1 - momentum))
        updates = orthogonalize(torch.cat([u.reshape(-1, *shape) for u in ahead])).float()
        rate = factor * (MUON_RATE * max(1, shape[0] / shape[1]) ** 0.5)
        at = 0
        for name in names:
            parameter = self.parameters[name]
            count = parameter.numel() // (shape[0] * shape[1])
            own = rate * INDEXER_FACTOR if ".indexer." in name else rate
            parameter.mul_(1 - factor * (MUON_RATE * DECAY))
            parameter.sub_(updates[at:at + count].view_as(parameter) * own)
            at += count

    def _adam(self):
        factor, first_fix, second_fix = self.scalars[0], self.scalars[2], self.scalars[3]
        names = self.adam_names
        gradients = self.gradients(names)
        firsts = [self.momenta[name] for name in names]
        torch._foreach_lerp_(firsts, gradients, 1 - ADAM_FIRST)
        torch._foreach_mul_(self.squares, ADAM_SECOND)
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - ADAM_SECOND)
        roots = torch._foreach_sqrt(torch._foreach_div(self.squares, second_fix))
        torch._foreach_add_(roots, ADAM_EPS)
        updates = torch._foreach_div(torch._foreach_div(firsts, first_fix), roots)
        torch._foreach_mul_(updates, factor * -ADAM_RATE)
        table = names.index("model.embed_tokens.weight")
        updates[table].mul_(EMBEDDING_FACTOR)
        torch._foreach_add_([self.parameters[name] for name in names], updates)
