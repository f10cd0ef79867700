"""Number formats, in NumPy, on values: bf16, e4m3, e2m1, MXFP4, NVFP4, and the cache formats.

Every encoder rounds to nearest, ties to even, and saturates. Codes are the bytes that a file or
cache row holds; the `through_*` functions return what a reader of the cache sees.
"""

import numpy as np

E2M1_VALUES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E4M3_MAX = 448.0
E2M1_MAX = 6.0
KEY_AMAX_FLOOR = np.float32(1e-4)


def bf16_bits(x):
  """float array -> uint16 bf16 codes. Finite input only."""
  bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
  bias = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
  return ((bits + bias) >> np.uint32(16)).astype(np.uint16)


def bf16_values(codes):
  """uint16 bf16 codes -> float32."""
  return (np.ascontiguousarray(codes, dtype=np.uint16).astype(np.uint32) << np.uint32(16)).view(
      np.float32)


def e4m3_bits(x):
  """float array -> e4m3 codes (4 exponent bits, bias 7, no infinity), saturating at 448."""
  x = np.asarray(x, dtype=np.float64)
  magnitude = np.minimum(np.abs(x), E4M3_MAX)
  # The unit in the last place is 2^(e-3) for a value in [2^e, 2^(e+1)), and 2^-9 below 2^-6.
  _, exponent = np.frexp(magnitude)  # magnitude = m * 2^exponent, m in [0.5, 1)
  exponent = np.where(magnitude > 0, np.maximum(exponent - 1, -6), -6)
  steps = np.rint(np.ldexp(magnitude, 3 - exponent)).astype(np.int64)  # 0..16; rint is ties-to-even
  # 8 steps are one binade, so exponent field and fraction add up, and a carry lands where it must.
  code = (exponent + 6) * 8 + steps
  code = np.minimum(code, 0x7E)
  return np.where(np.signbit(x), code | 0x80, code).astype(np.uint8)


def _e4m3_table():
  table = np.zeros(256)
  for code in range(256):
    exponent, fraction = (code >> 3) & 15, code & 7
    value = fraction * 2.0**-9 if exponent == 0 else (8 + fraction) * 2.0**(exponent - 10)
    if code & 0x7F == 0x7F:
      value = np.nan
    table[code] = -value if code & 0x80 else value
  return table


_E4M3 = _e4m3_table()


def e4m3_values(codes):
  return _E4M3[np.asarray(codes, dtype=np.uint8)]


def e2m1_bits(x):
  """float array -> e2m1 codes 0..15 (bit 3 is the sign), saturating at 6."""
  x = np.asarray(x, dtype=np.float64)
  magnitude = np.abs(x)
  # Midpoints between neighbours; a tie goes to the even code.
  ge = lambda bound: (magnitude >= bound).astype(np.uint8)
  gt = lambda bound: (magnitude > bound).astype(np.uint8)
  code = gt(0.25) + ge(0.75) + gt(1.25) + ge(1.75) + gt(2.5) + ge(3.5) + gt(5.0)
  return np.where(np.signbit(x), code | 8, code).astype(np.uint8)


def e2m1_values(codes):
  codes = np.asarray(codes, dtype=np.uint8)
  values = E2M1_VALUES[codes & 7]
  return np.where(codes & 8, -values, values)


def pack_nibbles(codes):
  """[..., n] codes -> [..., n/2] bytes; the even element is the low nibble."""
  return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def unpack_nibbles(packed):
  packed = np.asarray(packed, dtype=np.uint8)
  return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def _groups(x, size):
  return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def mxfp4_encode(x):
  """[..., n] -> (packed [..., n/2], e8m0 scale bytes [..., n/32])."""
  grouped = _groups(np.asarray(x, dtype=np.float64), 32)
  amax = np.maximum(np.abs(grouped).max(axis=-1), E2M1_MAX * 2.0**-126)
  mantissa, exponent = np.frexp(amax / E2M1_MAX)
  exponent = np.where(mantissa == 0.5, exponent - 1,
                      exponent)  # ceil(log2) of an exact power is itself
  exponent = np.clip(exponent, -127, 127)
  codes = e2m1_bits(np.ldexp(grouped, -exponent[..., None]))
  return pack_nibbles(codes.reshape(x.shape)), (exponent + 127).astype(np.uint8)


def mxfp4_decode(packed, scales):
  values = _groups(e2m1_values(unpack_nibbles(packed)), 32)
  scaled = np.ldexp(values, scales.astype(np.int64)[..., None] - 127)
  return scaled.reshape(*scaled.shape[:-2], -1)


def nvfp4_encode(x):
  """[..., n] -> (packed [..., n/2], e4m3 scale bytes [..., n/16]); the outer scale is 1."""
  grouped = _groups(np.asarray(x, dtype=np.float64), 16)
  scale_codes = e4m3_bits(np.abs(grouped).max(axis=-1) / E2M1_MAX)
  scale = e4m3_values(scale_codes)[..., None]
  # A group whose scale rounds to zero reads back as zeros whatever its codes are: write zeros.
  ratio = np.divide(grouped, scale, out=np.zeros_like(grouped), where=scale > 0)
  return pack_nibbles(e2m1_bits(ratio).reshape(x.shape)), scale_codes


def nvfp4_decode(packed, scale_codes):
  values = _groups(e2m1_values(unpack_nibbles(packed)), 16) * e4m3_values(scale_codes)[..., None]
  return values.reshape(*values.shape[:-2], -1)


def fp8_vector_encode(x):
  """[..., n] -> (e4m3 codes [..., n], float32 scale [...]): one scale for the vector."""
  x = np.asarray(x, dtype=np.float32)
  scale = np.maximum(np.abs(x).max(axis=-1), KEY_AMAX_FLOOR) / np.float32(E4M3_MAX)
  return e4m3_bits(x / scale[..., None]), scale


def through_latent(x, dtype, latent):
  """[T, C + r] latents and extra dims, as attention reads them back from the cache."""
  if dtype == "bf16":
    return bf16_values(bf16_bits(x)).astype(np.float64)
  if dtype == "fp8":
    return e4m3_values(e4m3_bits(x))
  if dtype == "nvfp4":
    if latent % 16:
      raise ValueError(f"nvfp4 latents need kv_lora_rank to be a multiple of 16, not {latent}")
    extra = e4m3_values(e4m3_bits(x[..., latent:]))
    return np.concatenate([nvfp4_decode(*nvfp4_encode(x[..., :latent])), extra], axis=-1)
  raise ValueError(f"unknown latent format {dtype}: bf16, fp8 or nvfp4")


def through_index(x, dtype):
  """[..., J] index keys or queries -> (values without the outer scale, outer scale [...])."""
  if dtype == "bf16":
    return bf16_values(bf16_bits(x)).astype(np.float64), np.ones(x.shape[:-1])
  if dtype == "fp8":
    codes, scale = fp8_vector_encode(x)
    return e4m3_values(codes), scale.astype(np.float64)
  if dtype == "mxfp4":
    if x.shape[-1] % 32:
      raise ValueError(f"mxfp4 keys need index_head_dim to be a multiple of 32, not {x.shape[-1]}")
    return mxfp4_decode(*mxfp4_encode(x)), np.ones(x.shape[:-1])
  raise ValueError(f"unknown key format {dtype}: bf16, fp8 or mxfp4")
