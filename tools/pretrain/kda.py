"""The KDA recurrence: a fused kernel on CUDA devices, plain PyTorch elsewhere, and one decode step.

Inputs: q, k, v [B, T, H, K] after convolution and SiLU, z [B, T, H, K] raw decay input, beta
[B, T, H] raw, A_log [H], dt_bias [H * K]. Output [B, T, H, V] in the dtype of v.
"""

import os

import torch

NORM_EPS = 1e-6
KERNEL_CONFIGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel_configs")
HOPPER = (9, 0)
PLAIN_CHUNK = 16  # with a decay of at least exp(-5) a token, exp(-sum) stays inside FP32


def use_kernel_configs():
    """Gives the fused kernels fixed launch settings, before they are imported: searching for them
    takes minutes at each first start. The settings here were found on a Hopper GPU."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() == HOPPER:
        os.environ.setdefault("FLA_CONFIG_DIR", KERNEL_CONFIGS)
        os.environ.setdefault("FLA_CACHE_MODE", "full")


def kda(q, k, v, z, beta, a_log, dt_bias, bound):
    if q.is_cuda:
        return _kda_fused(q, k, v, z, beta, a_log, dt_bias, bound)
    return kda_plain(q, k, v, z, beta, a_log, dt_bias, bound)


def _kda_fused(q, k, v, z, beta, a_log, dt_bias, bound):
    from fla.ops.kda import chunk_kda  # flash-linear-attention is only needed on a GPU
    return chunk_kda(q, k, v, z, beta, A_log=a_log, dt_bias=dt_bias, lower_bound=bound,
                     use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
                     use_beta_sigmoid_in_kernel=True, safe_gate=True)[0]


def unit(x):
    """L2 norm over the last axis in FP32."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS)


def log_decay(z, a_log, dt_bias, bound):
    """bound * sigmoid(exp(A_log) * (z + dt_bias)); z [..., H, K]."""
    heads, width = z.shape[-2:]
    shifted = z.float() + dt_bias.view(heads, width)
    return bound * torch.sigmoid(a_log.exp()[:, None] * shifted)


def kda_plain(q, k, v, z, beta, a_log, dt_bias, bound):
    """The chunked form in FP32; T must be a multiple of the chunk."""
    batch, length, heads, width = q.shape
    if length % PLAIN_CHUNK:
        raise ValueError("length %d is no multiple of %d: pad the rows" % (length, PLAIN_CHUNK))

    def chunks(x):  # [B, T, H, ...] -> [chunks, B, H, C, ...]
        return x.float().unflatten(1, (-1, PLAIN_CHUNK)).transpose(2, 3).transpose(0, 1)

    decay = chunks(log_decay(z, a_log, dt_bias, bound)).cumsum(3)
    q_in = chunks(unit(q)) * width ** -0.5 * decay.exp()
    k_in = chunks(unit(k)) * decay.exp()
    k_out = chunks(unit(k)) * (-decay).exp()
    rate = chunks(torch.sigmoid(beta.float())[..., None])
    values = chunks(v)
    strict = torch.ones(PLAIN_CHUNK, PLAIN_CHUNK, device=q.device).tril(-1)
    eye = torch.eye(PLAIN_CHUNK, device=q.device)
    mixing = eye + rate * (k_in @ k_out.transpose(-1, -2)) * strict
    scores = (q_in @ k_out.transpose(-1, -2)) * (strict + eye)
    state = q.new_zeros(batch, heads, width, v.shape[-1], dtype=torch.float32)
    outputs = []
    for c in range(len(values)):
        wanted = rate[c] * (values[c] - k_in[c] @ state)
        update = torch.linalg.solve_triangular(mixing[c], wanted, upper=False, unitriangular=True)
        outputs.append(q_in[c] @ state + scores[c] @ update)
        end = decay[c][:, :, -1].exp()[..., None]
        state = end * (state + k_out[c].transpose(-1, -2) @ update)
    result = torch.stack(outputs).transpose(0, 1).transpose(2, 3).flatten(1, 2)
    return result.to(v.dtype)


def kda_step(state, q, k, v, z, beta, a_log, dt_bias, bound):
    """One token a row: q, k, v, z [B, H, K], beta [B, H]; returns (new state, output FP32)."""
    q, k, v = unit(q) * q.shape[-1] ** -0.5, unit(k), v.float()
    state = state * log_decay(z, a_log, dt_bias, bound).exp()[..., None]
    error = v - torch.einsum("bhkv,bhk->bhv", state, k)
    rate = torch.sigmoid(beta.float())[..., None, None]
    state = state + rate * k[..., None] * error[:, :, None]
    return state, torch.einsum("bhkv,bhk->bhv", state, q)
