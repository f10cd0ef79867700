"""MXFP4 on hand numbers, the export and its way back, KDA's forms, decoding against the forward."""

import json
import random

import pytest

torch = pytest.importorskip("torch", reason="needs torch (tools/pretrain/requirements.txt)")
pytest.importorskip("safetensors", reason="needs safetensors (tools/pretrain/requirements.txt)")

from safetensors.torch import load_file

from pretrain import mxfp4
from pretrain.decode import Decoder
from pretrain.evaluate import last_number, response_text, wilson
from pretrain.export import disk_tensors, load_checkpoint, training_tensors
from pretrain.kda import kda_plain, kda_step
from pretrain.model import Model, Selection, best
from pretrain.parameters import initial_parameters, place
from pretrain.shapes import shapes_of_config, smallest_config
from pretrain.tests.test_checkpoint import MODEL, expected_tensors
from pretrain.train import rate_factor, steps_in

torch.set_num_threads(1)
DISK_TYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.uint8: "U8"}


@pytest.fixture(scope="module")
def config():
    return smallest_config(json.loads((MODEL / "config.json").read_text()))


@pytest.fixture(scope="module")
def tensors(config):
    return initial_parameters(shapes_of_config(config), 3)


def test_mxfp4_by_hand():
    row = torch.zeros(1, 32)
    row[0, :10] = torch.tensor([6.0, -4.0, 2.5, 3.5, 0.25, 0.75, 1.25, -0.26, 5.1, -5.0])
    codes, scales = mxfp4.quantize(row)
    assert scales.tolist() == [[127]]  # largest 6: 2^floor(log2 6) = 4, so the scale is 1
    assert codes[0, :10].tolist() == [7, 14, 4, 6, 0, 2, 2, 9, 7, 14]  # ties to the even code
    assert mxfp4.pack(codes)[0, :5].tolist() == [0xE7, 0x64, 0x20, 0x92, 0xE7]
    assert torch.equal(mxfp4.unpack(mxfp4.pack(codes)), codes)
    values = mxfp4.dequantize(codes, scales)[0, :10].tolist()
    assert values == [6.0, -4.0, 2.0, 4.0, 0.0, 1.0, 1.0, -0.5, 6.0, -4.0]


def test_mxfp4_scales_by_hand():
    row = torch.zeros(3, 32)
    row[0, 0], row[1, 0] = 0.4, 7.9  # 0.4: 2^-2 / 4 = 2^-4; 7.9: scale 1, clipped to 6
    codes, scales = mxfp4.quantize(row)
    assert scales[:2].tolist() == [[123], [127]]
    assert codes[:, 0].tolist() == [7, 7, 0]
    assert mxfp4.dequantize(codes, scales)[2].abs().sum() == 0


def test_mxfp4_training_values_are_the_stored_ones():
    weights = torch.randn(8, 96, generator=torch.Generator().manual_seed(1)) * 0.1
    weights.requires_grad_(True)
    rounded = mxfp4.round_through(weights)
    stored = mxfp4.dequantize(*mxfp4.quantize(weights.detach()))
    assert torch.allclose(rounded, stored, rtol=0, atol=1e-7)
    assert torch.equal(mxfp4.dequantize(*mxfp4.quantize(stored)), stored)
    rounded.sum().backward()
    assert torch.equal(weights.grad, torch.ones_like(weights))


def test_export_follows_the_published_table(config, tensors):
    disk = disk_tensors(tensors)
    header = {name: (DISK_TYPES[t.dtype], tuple(t.shape)) for name, t in disk.items()}
    assert header == expected_tensors(config["text_config"])


def test_export_and_import_are_inverse(config, tensors):
    shapes = shapes_of_config(config)
    disk = disk_tensors(tensors)
    again = training_tensors(disk, shapes)
    assert set(again) == set(tensors)
    second = disk_tensors(again)
    assert all(torch.equal(disk[name], second[name]) for name in disk)


def test_the_shipped_file_comes_back_byte_for_byte():
    config, tensors = load_checkpoint(MODEL)
    assert shapes_of_config(config).layers == 9
    disk, again = load_file(MODEL / "model.safetensors"), disk_tensors(tensors)
    assert set(disk) == set(again)
    assert all(torch.equal(disk[name], again[name]) for name in disk)


def test_kda_chunks_agree_with_single_steps():
    generator = torch.Generator().manual_seed(2)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    batch, length, heads, width = 2, 48, 3, 8
    q, k, v, z = (normal(batch, length, heads, width) for _ in range(4))
    beta, a_log, dt_bias = normal(batch, length, heads), normal(heads), normal(heads * width)
    chunked = kda_plain(q, k, v, z, beta, a_log, dt_bias, -5.0)
    state = torch.zeros(batch, heads, width, width)
    for at in range(length):
        state, out = kda_step(state, q[:, at], k[:, at], v[:, at], z[:, at], beta[:, at], a_log,
                              dt_bias, -5.0)
        assert torch.allclose(out, chunked[:, at], rtol=1e-4, atol=1e-5)


def test_decoding_agrees_with_the_forward(config, tensors):
    shapes = shapes_of_config(config)
    model = Model(shapes, place(tensors, "cpu"))
    rng = random.Random(4)
    prompts = [[rng.randrange(1792) for _ in range(length)] for length in (70, 90)]
    outs = Decoder(model, "cpu").run(prompts, 6, stop=-1)
    for prompt, out in zip(prompts, outs):
        ids = prompt + out
        padded = torch.tensor([ids + [0] * (-len(ids) % 64)])
        logits = model.logits(padded, Selection("topk"))[0]
        for at, token in enumerate(out, start=len(prompt) - 1):
            close = logits[at].max() - logits[at, token]
            assert close <= 0.02  # BF16 activations in another order; a wrong path is far off


def test_gradients_reach_every_parameter(config, tensors):
    shapes = shapes_of_config(config)
    model = Model(shapes, place(tensors, "cpu"))
    ids = torch.randint(0, 1792, (2, 128), generator=torch.Generator().manual_seed(5))
    losses = model.losses(ids, torch.roll(ids, -1, 1), torch.full(ids.shape, 10.0),
                          torch.tensor([5, 60, 127]), sparse=True)
    (losses.loss + losses.index).backward()
    silent = [name for name, p in model.parameters.items() if p.requires_grad and p.grad is None]
    first = "model.layers.0.self_attention_res_"
    assert silent == [first + "norm.weight", first + "proj.weight"]  # layer 0 mixes one row
    index_only = "model.layers.1.self_attn.indexer.wk.weight"
    assert model.parameters[index_only].grad.abs().max() > 0


def test_selection_prefers_scores_then_low_positions():
    scores = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0]])
    assert best(scores, 3).tolist() == [[False, True, True, True, False]]


def test_rates_rise_hold_and_fall():
    rates = [rate_factor(step, 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(0.01) and rates[99] == 1.0 and rates[500] == 1.0
    assert rates[-1] == pytest.approx(0.02)
    assert all(a >= b for a, b in zip(rates[500:], rates[501:]))


def test_steps_fill_the_seconds():
    names = ("short", "tool", "needle_1k", "needle_2k", "needle_4k", "needle_8k", "needle_16k")
    assert abs(steps_in(100.0, {(name, False): 0.1 for name in names}) - 1000) <= 1


def test_answers_are_read_from_the_response_channel():
    text = "1 + 2 = 3<|close|>think<|sep|><|open|>response<|sep|>It is -12.<|close|>response<|sep|>"
    assert response_text(text) == "It is -12." and last_number(response_text(text)) == -12
    assert response_text("no channel") is None and last_number(None) is None


def test_wilson_by_hand():
    low, high = wilson(10, 10)
    assert low == pytest.approx(0.7225, abs=1e-4) and high == pytest.approx(1.0)
    low, high = wilson(5, 10)
    assert low == pytest.approx(0.2366, abs=1e-4) and high == pytest.approx(0.7634, abs=1e-4)
