"""Pure pieces of the forward pass on flat rows [N, ...] in BF16, each small enough to be compiled.

`Pieces` holds them with the model's sizes bound in; `compiled()` gives the same pieces through
torch.compile, which fuses their element-wise parts.
"""

import torch
import torch.nn.functional as F

from . import mxfp4

BF16 = torch.bfloat16
INDEX_NORM_EPS = 1e-6
WEIGHT_EPS = 1e-20  # under the sum of the chosen router scores
BISECTIONS = 14  # halvings of the score range: finds the top-k bound to 1 part in 16,384
BARRED = -1e30  # below every score


def linear(x, weight):
    return x @ weight.to(BF16).t()


def rms_norm(x, weight, eps):
    x = x.float()
    scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (scaled * weight.to(BF16).float()).to(BF16)


class Pieces:
    """The forward pass's pieces for one set of shapes."""

    NAMES = ("mix", "kda_inputs", "kda_output", "mla_inputs", "mla_output", "index_inputs",
             "index_scores", "selection_bias", "index_loss", "round_experts", "route", "combine",
             "moe_output", "situ_halves", "dense_mlp", "answer_loss")

    def __init__(self, shapes):
        self.shapes = shapes

    def compiled(self):
        """Same pieces, compiled; those that see [T, T] accept changing lengths."""
        fast = Pieces(self.shapes)
        by_length = ("index_scores", "selection_bias", "index_loss")
        for name in self.NAMES:
            dynamic = None if name in by_length else False
            setattr(fast, name, torch.compile(getattr(self, name), dynamic=dynamic))
        return fast

    def mix(self, rows, res_norm, res_proj, norm):
        """Attention residual over the bank's rows, then the following RMSNorm."""
        eps = self.shapes.norm_eps
        if len(rows) == 1:
            return rms_norm(rows[0], norm, eps)
        query = res_norm * res_proj[0]
        wide = [row.float() for row in rows]
        scores = torch.stack([(row * query).sum(-1)
                              * torch.rsqrt(row.square().mean(-1) + eps) for row in wide])
        shares = torch.softmax(scores, 0)
        mixed = sum(share[:, None] * row for share, row in zip(shares, wide))
        return rms_norm(mixed.to(BF16), norm, eps)

    def situ(self, gate, up):
        beta, linear_beta = self.shapes.situ_gate, self.shapes.situ_linear
        gate, up = gate.float(), up.float()
        gated = beta * torch.tanh(gate / beta) * torch.sigmoid(gate)
        return (gated * (linear_beta * torch.tanh(up / linear_beta))).to(BF16)

    def situ_halves(self, gate_up):
        gate, up = gate_up.chunk(2, -1)
        return self.situ(gate, up)

    def dense_mlp(self, x, gate, up, down):
        return linear(self.situ(linear(x, gate), linear(x, up)), down)

    # KDA
    def kda_inputs(self, x, weights, decay_up, convs, positions):
        """Projections, causal convolution, SiLU: returns q, k, v, raw decay, raw beta, gate."""
        s, total = self.shapes, self.shapes.kda_total
        fused = linear(x, torch.cat(weights))
        streams = fused[:, :3 * total].float()
        taps = torch.cat(convs)[:, 0]
        mixed = streams * taps[:, -1]
        for back in range(1, s.conv_taps):
            earlier = F.pad(streams, (0, 0, back, 0))[:-back]
            inside = (positions >= back)[:, None]
            mixed = mixed + torch.where(inside, earlier, 0.0) * taps[:, -1 - back]
        active = F.silu(mixed).to(BF16)
        q, k, v = (part.contiguous() for part in active.split(total, 1))
        gate, low, beta = fused[:, 3 * total:].split((total, s.kda_width, s.kda_heads), 1)
        return q, k, v, linear(low, decay_up), beta.contiguous(), gate

    def kda_output(self, heads, gate, norm, out):
        """Norm per head, gate, output projection; heads [N, H, V]."""
        wide = heads.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.shapes.norm_eps)
        wide = wide * scale * norm
        return linear((wide.flatten(1) * torch.sigmoid(gate.float())).to(BF16), out)

    # MLA
    def mla_inputs(self, x, weights, q_norm, q_up, kv_norm):
        """Returns q [N, H, nope + rope], latent, rope part, gate, query latent."""
        s = self.shapes
        fused = linear(x, torch.cat(weights))
        parts = (s.query_rank, s.latent_width, s.rope_width, s.heads * s.value_width)
        low, latent, rope, gate = fused.split(parts, 1)
        low = rms_norm(low, q_norm, s.lora_norm_eps)
        q = linear(low, q_up).view(-1, s.heads, s.query_width)
        return q, rms_norm(latent, kv_norm, s.lora_norm_eps), rope, gate, low

    def expand_latent(self, latent, rope, kv_up):
        """Keys [N, H, nope + rope] and values [N, H, V] of all heads."""
        s = self.shapes
        both = linear(latent, kv_up).view(-1, s.heads, s.nope_width + s.value_width)
        nope, value = both.split((s.nope_width, s.value_width), -1)
        shared = rope[:, None].expand(-1, s.heads, -1)
        return torch.cat([nope, shared], -1), value.contiguous()

    def mla_output(self, heads, gate, out):
        return linear(heads.flatten(1) * torch.sigmoid(gate), out)

    # Indexer
    def index_inputs(self, x, low, wq_b, wk, norm_weight, norm_bias, weights_proj):
        """Index queries [N, I, J], keys [N, J] and head gates [N, I]."""
        s = self.shapes
        q = linear(low, wq_b).view(-1, s.index_heads, s.index_width)
        k = F.layer_norm(linear(x, wk).float(), (s.index_width,), norm_weight, norm_bias,
                         INDEX_NORM_EPS).to(BF16)
        return q, k, linear(x, weights_proj).float() * s.index_scale

    def index_scores(self, q, k, gates):
        """q [B, R, I, J], k [B, T, J], gates [B, R, I] -> FP32 [B, R, T]."""
        keys = k.transpose(1, 2)
        score = 0
        for head in range(self.shapes.index_heads):
            score = score + torch.relu(q[:, :, head] @ keys).float() * gates[:, :, head, None]
        return score

    def selection_bias(self, scores):
        """Additive mask of about the top-k best causal keys a row, by bisection (training only)."""
        length, count = scores.shape[1], self.shapes.index_topk
        place = torch.arange(length, device=scores.device)
        causal = place[None, :] <= place[:, None]
        seen = torch.where(causal, scores.float(), BARRED)
        high = seen.amax(-1) + 1e-3
        low = torch.where(causal, scores.float(), -BARRED).amin(-1) - 1e-3
        for _ in range(BISECTIONS):
            middle = (low + high) * 0.5
            too_many = (seen >= middle[..., None]).sum(-1) > count
            low, high = torch.where(too_many, middle, low), torch.where(too_many, high, middle)
        keep = causal & (seen >= low[..., None])
        return torch.where(keep, 0.0, float("-inf")).to(BF16)

    def index_loss(self, q, k, index_q, index_k, gates, rows):
        """KL of the index softmax from the head-mean attention (a constant) on query `rows`."""
        place = torch.arange(k.shape[1], device=k.device)
        causal = place[None, :] <= rows[:, None]
        with torch.no_grad():
            scores = torch.einsum("brhd,bthd->bhrt", q, k).float() * self.shapes.attention_scale
            target = torch.softmax(scores.masked_fill(~causal, float("-inf")), -1).mean(1)
        own = self.index_scores(index_q, index_k, gates).masked_fill(~causal, float("-inf"))
        logs = torch.where(causal, torch.log_softmax(own, -1), 0.0)
        entropy = (target * torch.log(target.clamp(min=1e-9))).sum(-1).mean()
        return entropy - (target * logs).sum(-1).mean()

    # Experts
    def round_experts(self, w1, w3, w2):
        """MXFP4 values in BF16: gate and up stacked, and down."""
        first = torch.cat([mxfp4.round_through(w1), mxfp4.round_through(w3)], 1)
        return first.to(BF16), mxfp4.round_through(w2).to(BF16)

    def route(self, x, gate, bias):
        """Chosen experts [N, A] and their weights; the bias only helps to choose."""
        scores = torch.sigmoid(x.float() @ gate.to(BF16).float().t())
        chosen = torch.topk(scores + bias, self.shapes.active_experts, dim=-1).indices
        weights = scores.gather(1, chosen)
        return chosen, weights / (weights.sum(-1, keepdim=True) + WEIGHT_EPS)

    def combine(self, outputs, weights):
        s = self.shapes
        parts = outputs.view(-1, s.active_experts, s.expert_latent).float()
        return (parts * weights[..., None]).sum(1).to(BF16)

    def moe_output(self, routed, x, norm, up, shared_gate, shared_up, shared_down):
        shared = self.dense_mlp(x, shared_gate, shared_up, shared_down)
        return linear(rms_norm(routed, norm, self.shapes.norm_eps), up) + shared

    def answer_loss(self, x, head, labels, weights, answer_weight):
        """Weighted loss; loss and accuracy of what the assistant wrote (for the log)."""
        logits = linear(x, head).float()
        losses = F.cross_entropy(logits, labels, reduction="none")
        answers = (weights >= answer_weight).float()
        count = answers.sum().clamp(min=1)
        hits = (logits.argmax(-1) == labels).float()
        return ((losses * weights).sum() / weights.sum(),
                (losses.detach() * answers).sum() / count, (hits * answers).sum() / count)
