"""MXFP4: 4-bit floats (e2m1) in groups of 32 with a power-of-two scale, as the experts are stored.

Scale of a group: 2^(floor(log2(largest magnitude)) - 2), so that the largest lands in [4, 8) and is
rounded or clipped to 4 or 6. Values round to nearest, ties to the even code.
"""

import torch

GROUP = 32
SCALE_BIAS = 127
CODE_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # code = index; bit 3 is the sign
LARGEST_EXPONENT = 2  # 6 = 1.5 * 2^2
SMALLEST = 1e-30  # stands in for 0; its exponent is far from the range of the scale byte
MANTISSA_BITS = 23

# A magnitude's code is the number of these bounds it has passed: the midpoints between the code
# values. Each midpoint itself goes to the even code, so every second bound includes its own value.
_BOUNDS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True),
           (5.0, False))


def _power_of_two(exponents):
    """2^exponent from the bits of a float: exact on every device."""
    return ((exponents + SCALE_BIAS) << MANTISSA_BITS).view(torch.float32)


def _exponents(groups):
    """Scale exponent of each group, int32 [..., groups, 1]."""
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=SMALLEST)
    return (largest.view(torch.int32) >> MANTISSA_BITS) - SCALE_BIAS - LARGEST_EXPONENT


def _codes(magnitudes):
    code = torch.zeros_like(magnitudes, dtype=torch.int32)
    for bound, inclusive in _BOUNDS:
        code = code + (magnitudes >= bound if inclusive else magnitudes > bound).to(torch.int32)
    return code


def quantize(weights):
    """[..., columns] to (codes uint8 0..15 [..., columns], scale bytes [..., columns / 32])."""
    groups = weights.float().unflatten(-1, (-1, GROUP))
    exponents = _exponents(groups)
    scaled = groups / _power_of_two(exponents)
    codes = _codes(scaled.abs()) + 8 * torch.signbit(scaled).to(torch.int32)
    return (codes.flatten(-2).to(torch.uint8),
            (exponents.squeeze(-1) + SCALE_BIAS).to(torch.uint8))


def pack(codes):
    """Two codes a byte: the even column in the low half."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed):
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


def dequantize(codes, scales):
    """Inverse of `quantize`, exact in FP32."""
    table = torch.tensor(CODE_VALUES, device=codes.device)
    table = torch.cat([table, -table])
    values = table[codes.long()].unflatten(-1, (-1, GROUP))
    factors = _power_of_two(scales.to(torch.int32) - SCALE_BIAS)
    return (values * factors[..., None]).flatten(-2)


def round_through(weights):
    """The MXFP4 value of each weight, with the gradient of the identity."""
    groups = weights.float().unflatten(-1, (-1, GROUP))
    factor = _power_of_two(_exponents(groups.detach()))
    magnitude = (groups / factor).abs()
    rounded = torch.zeros_like(magnitude)
    steps = [high - low for low, high in zip(CODE_VALUES, CODE_VALUES[1:])]
    for (bound, inclusive), step in zip(_BOUNDS, steps):
        rounded = rounded + (magnitude >= bound if inclusive else magnitude > bound) * step
    value = (torch.sign(groups) * rounded * factor).flatten(-2)
    return weights + (value - weights).detach()
