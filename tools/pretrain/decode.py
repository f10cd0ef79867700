"""Batched decoding for the evaluation: one token a step for all rows, each row from position 0.

Rows are fed their prompts and then run free, so prompts of any lengths share a batch. Attention
uses the absorbed form over cached latents and the exact top-k, as an engine would.
"""

import torch
import torch.nn.functional as F

from .kda import kda_step
from .layers import BF16, linear
from .model import best
from .parameters import layer_name

CHECK_EVERY = 16  # steps between looks at whether all rows have ended


class LayerCache:
    """What one layer keeps: latents and index keys, or a KDA state and its convolution window."""

    def __init__(self, model, layer, rows, length, device):
        s = model.shapes
        if s.is_full(layer):
            width = s.latent_width + s.rope_width
            self.latents = torch.zeros(rows, length, width, dtype=BF16, device=device)
            self.keys = torch.zeros(rows, length, s.index_width, dtype=BF16, device=device)
        else:
            self.state = torch.zeros(rows, s.kda_heads, s.kda_width, s.kda_width, device=device)
            self.window = torch.zeros(rows, s.conv_taps - 1, 3 * s.kda_total, dtype=BF16,
                                      device=device)


class Decoder:
    def __init__(self, model, device):
        self.model = model
        self.device = device
        with torch.no_grad():
            self.experts = {layer: model.rounded_experts(layer)
                            for layer in range(model.shapes.layers)
                            if not model.shapes.is_dense(layer)}

    @torch.no_grad()
    def run(self, prompts, new_tokens, stop, temperature=0.0, seed=0):
        """Returns the new ids of each prompt, up to and with `stop`."""
        rows, lengths = len(prompts), [len(prompt) for prompt in prompts]
        total = max(lengths) + new_tokens
        ids = torch.zeros(rows, total, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, :len(prompt)] = torch.tensor(prompt)
        ids, prompt_ends = ids.to(self.device), torch.tensor(lengths, device=self.device)
        caches = [LayerCache(self.model, layer, rows, total, self.device)
                  for layer in range(self.model.shapes.layers)]
        generator = torch.Generator(device=self.device).manual_seed(seed)
        done = torch.zeros(rows, dtype=torch.bool, device=self.device)
        for at in range(total - 1):
            logits = self._step(ids[:, at], at, caches)
            chosen = self._choose(logits, temperature, generator)
            free = (at + 1 >= prompt_ends) & ~done
            ids[:, at + 1] = torch.where(free, chosen, torch.where(done, stop, ids[:, at + 1]))
            done |= free & (chosen == stop)
            if at % CHECK_EVERY == 0 and bool(done.all()):
                break
        answers = [row[length:] for row, length in zip(ids.tolist(), lengths)]
        return [a[:a.index(stop) + 1] if stop in a else a for a in answers]

    @staticmethod
    def _choose(logits, temperature, generator):
        if temperature == 0.0:
            return logits.argmax(-1)
        shares = torch.softmax(logits / temperature, -1)
        return torch.multinomial(shares, 1, generator=generator)[:, 0]

    def _step(self, tokens, at, caches):
        """FP32 logits behind one token a row at position `at`."""
        model, s = self.model, self.model.shapes
        current, bank = model.parameters["model.embed_tokens.weight"][tokens].to(BF16), []
        for layer in range(s.layers):
            name = layer_name(layer)
            x = model.mixed(bank + [current], name, "self_attention_res", "input_layernorm")
            if layer % s.residual_block == 0:
                bank, current = bank + [current], None
            attention = self._full_attention if s.is_full(layer) else self._kda_attention
            out = attention(x, name + "self_attn.", at, caches[layer])
            current = out if current is None else current + out
            x = model.mixed(bank + [current], name, "mlp_res", "post_attention_layernorm")
            current = current + model.feed_forward(x, layer, self.experts.get(layer))
        x = model.mixed(bank + [current], "model.", "output_attn_res", "norm")
        return linear(x, model.parameters["lm_head.weight"]).float()

    def _kda_attention(self, x, prefix, at, cache):
        model, s = self.model, self.model.shapes
        projections, convs = model.kda_weights(prefix)
        fused = linear(x, torch.cat(projections))
        streams, gate, low, beta = fused.split(
            (3 * s.kda_total, s.kda_total, s.kda_width, s.kda_heads), 1)
        window = torch.cat([cache.window, streams[:, None]], 1)
        cache.window = window[:, 1:]
        taps = torch.cat(convs)[:, 0].t()
        active = F.silu((window.float() * taps).sum(1)).to(BF16)
        decay = linear(low, *model.at(prefix, "f_b_proj"))
        q, k, v, z = (part.reshape(-1, s.kda_heads, s.kda_width)
                      for part in (*active.split(s.kda_total, 1), decay))
        cache.state, heads = kda_step(
            cache.state, q, k, v, z, beta, model.parameters[prefix + "A_log"],
            model.parameters[prefix + "dt_bias"], s.gate_bound)
        return model.pieces.kda_output(heads.to(BF16), gate, *model.at(prefix, "o_norm", "o_proj"))

    def _full_attention(self, x, prefix, at, cache):
        model, s = self.model, self.model.shapes
        q, latent, rope, gate, low = model.pieces.mla_inputs(
            x, model.mla_weights(prefix),
            *model.at(prefix, "q_a_layernorm", "q_b_proj", "kv_a_layernorm"))
        index_q, index_k, index_gates = model.index(x, low, prefix)
        cache.latents[:, at], cache.keys[:, at] = torch.cat([latent, rope], -1), index_k
        up = model.at(prefix, "kv_b_proj")[0].to(BF16)
        up = up.view(s.heads, s.nope_width + s.value_width, s.latent_width)
        absorbed = torch.einsum("bhd,hdc->bhc", q[..., :s.nope_width], up[:, :s.nope_width])
        query = torch.cat([absorbed, q[..., s.nope_width:]], -1)
        seen = cache.latents[:, :at + 1]
        scores = torch.einsum("bhc,btc->bht", query, seen).float() * s.attention_scale
        if at + 1 > s.index_topk:
            index_scores = model.pieces.index_scores(index_q[:, None], cache.keys[:, :at + 1],
                                                     index_gates[:, None])[:, 0]
            kept = best(index_scores.to(BF16), s.index_topk)
            scores = scores.masked_fill(~kept[:, None], float("-inf"))
        shares = torch.softmax(scores, -1).to(BF16)
        mixed = torch.einsum("bht,btc->bhc", shares, seen[..., :s.latent_width])
        heads = torch.einsum("bhc,hdc->bhd", mixed, up[:, s.nope_width:])
        return model.pieces.mla_output(heads, gate, *model.at(prefix, "o_proj"))
