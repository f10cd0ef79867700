"""KDA by chunks of sixteen tokens: the arithmetic that docs/numerics.md asks of the devices (N3).

With no rounding it equals the recurrence; with rounding it shows what the operands of the matrix
instructions cost. `rounding` is "none", "operands" (every operand of a matrix step is BF16) or
"keep_solve" (the same, but the triangular solve and the rows it yields stay FP32).
"""

import torch

CHUNK = 16


def bf16(x):
  return x.float().bfloat16().double()


def pair_products(left, right, total):
  """sum_i left[r, i] right[c, i] exp(G_r[i] - G_c[i]): needs no bound on the decay."""
  # Above the diagonal the exponent is positive and unused: keep it from overflowing.
  exponent = (total[:, None] - total[None]).clamp(max=0)
  return torch.einsum("rhk,chk,rchk->hrc", left, right, torch.exp(exponent))


def kda_chunked(q, k, v, g, beta, bounded, rounding="none"):
  """The arguments and the result of model.kda_recurrence."""
  operand = bf16 if rounding != "none" else lambda x: x
  solve = bf16 if rounding == "operands" else lambda x: x
  state = q.new_zeros(q.shape[1], q.shape[2], v.shape[2])
  out = []
  for at in range(0, len(q), CHUNK):
    qc, kc, vc, gc, bc = (x[at:at + CHUNK] for x in (q, k, v, g, beta))
    total = gc.cumsum(0)
    kd, qd = operand(kc * total.exp()), operand(qc * total.exp())
    if bounded:  # |G| <= 80: both factors fit FP32 and BF16
      ki = operand(kc * (-total).exp())
      a, m = torch.einsum("rhk,chk->hrc", kd, ki), torch.einsum("rhk,chk->hrc", qd, ki)
    else:
      a, m = pair_products(kc, kc, total), pair_products(qc, kc, total)
    a, m = a.tril(-1) * bc.T[:, :, None], operand(m.tril())
    seen = operand(state)
    x = bc[:, :, None] * (vc - torch.einsum("rhk,hkv->rhv", kd, seen))
    eye = torch.eye(len(qc), dtype=q.dtype).expand_as(a)
    t = torch.linalg.solve_triangular(eye + a, eye, upper=False)
    u = solve(torch.einsum("hrc,chv->rhv", solve(t), solve(x)))
    out.append(torch.einsum("rhk,hkv->rhv", qd, seen) + torch.einsum("hrc,chv->rhv", m, u))
    restored = operand(kc * (total[-1] - total).exp())
    state = total[-1].exp()[:, :, None] * state + torch.einsum("chk,chv->hkv", restored, u)
  return torch.cat(out)
