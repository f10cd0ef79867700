"""The training model: K3.1's forward pass over padded rows, written on the pieces of layers.py."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .kda import kda
from .layers import BF16, Pieces, linear
from .parameters import ROUTER_BIAS, layer_name
from .xtml import ANSWER_WEIGHT

EXACT_ROWS = 256  # query rows at a time in the exact attention, to bound its memory


@dataclass
class Losses:
    """What one training forward gives; `answer` and `accuracy` are for the log only."""
    loss: torch.Tensor
    index: torch.Tensor
    answer: torch.Tensor
    accuracy: torch.Tensor


class EmbeddingRows(torch.autograd.Function):
    """Rows of the table in BF16; the gradient is a product with one-hot rows, so its order of
    addition is fixed and a CUDA graph can hold it."""

    @staticmethod
    def forward(ctx, ids, table):
        ctx.save_for_backward(ids)
        ctx.tokens = table.shape[0]
        return F.embedding(ids, table).to(BF16)

    @staticmethod
    def backward(ctx, gradient):
        ids, = ctx.saved_tensors
        hot = torch.zeros(len(ids), ctx.tokens, dtype=BF16, device=ids.device)
        hot.scatter_(1, ids[:, None], 1.0)
        return None, (hot.t() @ gradient).float()


class Reorder(torch.autograd.Function):
    """x[order]; the gradient is reordered back by `inverse` instead of scattered."""

    @staticmethod
    def forward(ctx, x, order, inverse):
        ctx.save_for_backward(inverse)
        return x[order]

    @staticmethod
    def backward(ctx, gradient):
        return gradient[ctx.saved_tensors[0]], None, None


def grouped_product(x, weights, ends):
    """Rows of expert e, x[ends[e-1]:ends[e]], times weights[e] transposed."""
    if x.is_cuda:
        return torch._grouped_mm(x, weights.transpose(1, 2), offs=ends)
    starts = [0] + ends.tolist()
    return torch.cat([x[a:b] @ weight.t() for a, b, weight in zip(starts, starts[1:], weights)])


class Model:
    """Parameters and the forward pass. `pieces` may be replaced by their compiled form."""

    def __init__(self, shapes, parameters, pieces=None):
        self.shapes = shapes
        self.parameters = parameters
        self.pieces = pieces or Pieces(shapes)
        self.expert_ends = {}  # layer -> end row of each expert in the last forward
        self._positions = {}

    def at(self, prefix, *names):
        """Parameters `prefix + name + ".weight"`, in order."""
        return [self.parameters[prefix + name + ".weight"] for name in names]

    def positions(self, rows, length, device):
        key = (rows, length)
        if key not in self._positions:
            self._positions[key] = torch.arange(length, device=device).repeat(rows)
        return self._positions[key]

    def losses(self, ids, labels, weights, query_rows, sparse):
        """Training forward on ids [B, T]; `query_rows` are the rows of the indexer's loss."""
        index_losses = []

        def attend(prefix, q, k, v, index):
            index_losses.append(self.pieces.index_loss(
                q.detach()[:, query_rows], k.detach(), index[0][:, query_rows], index[1],
                index[2][:, query_rows], query_rows))
            return self._training_attention(q, k, v, index, sparse)

        hidden = self._forward(ids, attend)
        loss, answer, accuracy = self.pieces.answer_loss(
            hidden, self.parameters["lm_head.weight"], labels.reshape(-1), weights.reshape(-1),
            ANSWER_WEIGHT)
        return Losses(loss, sum(index_losses), answer, accuracy)

    @torch.no_grad()
    def logits(self, ids, selection, keep=None):
        """Exact forward: FP32 logits of positions `keep` (all by default) of ids [B, T]."""
        hidden = self._forward(ids, lambda prefix, q, k, v, index: selection.attention(
            self, q, k, v, index))
        hidden = hidden.view(*ids.shape, -1)
        if keep is not None:
            hidden = hidden[:, keep]
        return linear(hidden, self.parameters["lm_head.weight"]).float()

    def _forward(self, ids, attend):
        """Final normed hidden rows [B * T, D]."""
        s = self.shapes
        current = EmbeddingRows.apply(ids.reshape(-1), self.parameters["model.embed_tokens.weight"])
        bank = []
        for layer in range(s.layers):
            name = layer_name(layer)
            x = self.mixed(bank + [current], name, "self_attention_res", "input_layernorm")
            if layer % s.residual_block == 0:
                bank, current = bank + [current], None
            if s.is_full(layer):
                out = self._full_attention(x, name + "self_attn.", ids.shape, attend)
            else:
                out = self._kda_attention(x, name + "self_attn.", ids.shape)
            current = out if current is None else current + out
            x = self.mixed(bank + [current], name, "mlp_res", "post_attention_layernorm")
            current = current + self.feed_forward(x, layer)
        return self.mixed(bank + [current], "model.", "output_attn_res", "norm")

    def mixed(self, rows, prefix, residual, norm):
        return self.pieces.mix(rows, *self.at(prefix, residual + "_norm", residual + "_proj", norm))

    def kda_weights(self, prefix):
        """The fused input projections and the three convolutions."""
        return (self.at(prefix, "q_proj", "k_proj", "v_proj", "g_proj", "f_a_proj", "b_proj"),
                self.at(prefix, "q_conv1d", "k_conv1d", "v_conv1d"))

    def mla_weights(self, prefix):
        return self.at(prefix, "q_a_proj", "kv_a_proj_with_mqa", "g_proj")

    def _kda_attention(self, x, prefix, shape):
        s, (rows, length) = self.shapes, shape
        projections, convs = self.kda_weights(prefix)
        q, k, v, z, beta, gate = self.pieces.kda_inputs(
            x, projections, *self.at(prefix, "f_b_proj"), convs,
            self.positions(rows, length, x.device))
        q, k, v, z = (t.view(rows, length, s.kda_heads, s.kda_width) for t in (q, k, v, z))
        heads = kda(q, k, v, z, beta.view(rows, length, s.kda_heads),
                    self.parameters[prefix + "A_log"], self.parameters[prefix + "dt_bias"],
                    s.gate_bound)
        return self.pieces.kda_output(heads.reshape(rows * length, s.kda_heads, s.kda_width), gate,
                                      *self.at(prefix, "o_norm", "o_proj"))

    def _full_attention(self, x, prefix, shape, attend):
        s = self.shapes
        q, latent, rope, gate, low = self.pieces.mla_inputs(
            x, self.mla_weights(prefix),
            *self.at(prefix, "q_a_layernorm", "q_b_proj", "kv_a_layernorm"))
        k, v = self.expand(latent, rope, prefix)
        index = self.index(x.detach(), low.detach(), prefix)
        q, k, v, *index = (t.view(*shape, *t.shape[1:]) for t in (q, k, v, *index))
        heads = attend(prefix, q, k, v, index)
        return self.pieces.mla_output(heads.reshape(-1, s.heads, s.value_width), gate,
                                      *self.at(prefix, "o_proj"))

    def expand(self, latent, rope, prefix):
        return self.pieces.expand_latent(latent, rope, *self.at(prefix, "kv_b_proj"))

    def index(self, x, low, prefix):
        """Index queries, keys and gates."""
        prefix += "indexer."
        return self.pieces.index_inputs(x, low, *self.at(prefix, "wq_b", "wk", "k_norm"),
                                        self.parameters[prefix + "k_norm.bias"],
                                        *self.at(prefix, "weights_proj"))

    def _training_attention(self, q, k, v, index, sparse):
        """Fused attention over all causal keys, or over about the top-k ones."""
        s = self.shapes
        padded = F.pad(v, (0, s.query_width - s.value_width))
        q, k, padded = (t.transpose(1, 2) for t in (q, k, padded))
        if sparse and q.shape[2] > s.index_topk:
            with torch.no_grad():
                scores = self.pieces.index_scores(*index).to(BF16)
                bias = self.pieces.selection_bias(scores)
            bias = bias[:, None].expand(-1, s.heads, -1, -1)
            out = F.scaled_dot_product_attention(q, k, padded, attn_mask=bias)
        else:
            out = F.scaled_dot_product_attention(q, k, padded, is_causal=True)
        return out[..., :s.value_width].transpose(1, 2)

    def feed_forward(self, x, layer, experts=None):
        """Dense MLP or latent experts; `experts` are rounded weights made once (decoding)."""
        name = layer_name(layer)
        if self.shapes.is_dense(layer):
            return self.pieces.dense_mlp(x, *self.at(name + "mlp.", "gate_proj", "up_proj",
                                                     "down_proj"))
        name += "block_sparse_moe."
        routed = self._routed_experts(x, layer, name, experts or self.rounded_experts(layer))
        return self.pieces.moe_output(routed, x, *self.at(
            name, "routed_expert_norm", "routed_expert_up_proj", "shared_experts.gate_proj",
            "shared_experts.up_proj", "shared_experts.down_proj"))

    def router_bias(self, layer):
        return self.parameters[layer_name(layer) + "block_sparse_moe.gate." + ROUTER_BIAS]

    def rounded_experts(self, layer):
        prefix = layer_name(layer) + "block_sparse_moe.experts."
        return self.pieces.round_experts(*(self.parameters[prefix + part]
                                           for part in ("w1", "w3", "w2")))

    def _routed_experts(self, x, layer, name, experts):
        s = self.shapes
        gate, down = self.at(name, "gate", "routed_expert_down_proj")
        chosen, weights = self.pieces.route(x, gate, self.router_bias(layer))
        sorted_experts, order = torch.sort(chosen.reshape(-1))
        places = torch.arange(order.numel(), device=x.device)
        inverse = torch.empty_like(order).scatter_(0, order, places)
        bounds = torch.arange(1, s.experts + 1, device=x.device)
        ends = torch.searchsorted(sorted_experts, bounds).to(torch.int32)
        self.expert_ends[layer] = ends
        latent = linear(x, down)[:, None].expand(-1, s.active_experts, -1)
        rows = Reorder.apply(latent.reshape(-1, s.expert_latent), order, inverse)
        rows = self.pieces.situ_halves(grouped_product(rows, experts[0], ends))
        rows = Reorder.apply(grouped_product(rows, experts[1], ends), inverse, order)
        return self.pieces.combine(rows, weights)


class Selection:
    """Exact attention for evaluation: `topk` (the model as it runs), `dense` or `window`.

    With `measure` set, `mass` collects the share of attention that the selection keeps, as a mean
    over rows that see at least `MASS_FROM` times more keys than are selected.
    """

    MASS_FROM = 4

    def __init__(self, mode="topk", measure=False):
        if mode not in ("topk", "dense", "window"):
            raise ValueError("selection %r is none of topk, dense, window" % mode)
        self.mode = mode
        self.measure = measure
        self.mass = []

    def attention(self, model, q, k, v, index):
        parts = [self._rows(model, q, k, v, index, start) for start in
                 range(0, q.shape[1], EXACT_ROWS)]
        return torch.cat(parts, 1)

    def _rows(self, model, q, k, v, index, start):
        s = model.shapes
        end = min(q.shape[1], start + EXACT_ROWS)
        place = torch.arange(end, device=q.device)
        rows = place[start:, None]
        causal = (place <= rows)[None]
        kept = causal & (place > rows - s.index_topk) if self.mode == "window" else causal
        if self.mode == "topk" and end > s.index_topk:
            scores = model.pieces.index_scores(index[0][:, start:end], index[1][:, :end],
                                               index[2][:, start:end])
            scores = scores.to(BF16).masked_fill(~causal, float("-inf"))
            kept = causal & best(scores, s.index_topk)
        scores = torch.einsum("brhd,bthd->bhrt", q[:, start:end], k[:, :end]).float()
        scores = scores * s.attention_scale
        if self.measure and start >= self.MASS_FROM * s.index_topk:
            full = torch.softmax(scores.masked_fill(~causal[:, None], float("-inf")), -1)
            self.mass.append(float((full * kept[:, None]).sum(-1).mean()))
        shares = torch.softmax(scores.masked_fill(~kept[:, None], float("-inf")), -1).to(BF16)
        return torch.einsum("bhrt,bthd->brhd", shares, v[:, :end])


def best(scores, count):
    """Mask of the `count` best entries a row; ties go to the lowest position, as in the engine."""
    count = min(count, scores.shape[-1])
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True)
