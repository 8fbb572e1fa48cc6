"""GGUF's block types: bytes to float32, bit-equal to the `gguf` package's own dequantisation. It is the specification
that the native library is tested against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gguf.quants import IQ2_XXS, IQ3_XXS
from jax import lax

# What four bits mean; e2m1's numbers (OCP Microscaling Formats) are doubled, and scales halved.
NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FLOAT4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def decode(data: jax.Array, kind: str) -> jax.Array:
    """Blocks `data[..., row_bytes]` as float32 `[..., in]`."""
    kind_of = KINDS[kind]
    blocks = data.reshape(*data.shape[:-1], -1, kind_of.bytes)
    values = kind_of.decode(blocks)  # [..., blocks of a row, weights of a block]
    return values.reshape(*data.shape[:-1], -1)


def _half(b: jax.Array, at: int) -> jax.Array:
    """The float16 at byte `at` of each block, `[..., 1]` float32."""
    return lax.bitcast_convert_type(b[..., at : at + 2], jnp.float16).astype(jnp.float32)[..., None]


def _nibbles(b: jax.Array) -> jax.Array:
    """All low halves of the bytes, then all high ones."""
    return jnp.concatenate([b & 15, b >> 4], axis=-1)


def _fifth(b: jax.Array) -> jax.Array:
    """One bit a weight, lowest first, in the place of a fifth bit."""
    bits = (b[..., :, None] >> jnp.arange(8, dtype=jnp.uint8)) & 1
    return bits.reshape(*b.shape[:-1], -1) << 4


def _number(q: jax.Array) -> jax.Array:
    return q.astype(jnp.float32)


def _q4_0(b: jax.Array) -> jax.Array:
    return _half(b, 0) * (_number(_nibbles(b[..., 2:])) - 8)


def _q4_1(b: jax.Array) -> jax.Array:
    return _half(b, 0) * _number(_nibbles(b[..., 4:])) + _half(b, 2)


def _q5_0(b: jax.Array) -> jax.Array:
    return _half(b, 0) * (_number(_nibbles(b[..., 6:]) | _fifth(b[..., 2:6])) - 16)


def _q5_1(b: jax.Array) -> jax.Array:
    return _half(b, 0) * _number(_nibbles(b[..., 8:]) | _fifth(b[..., 4:8])) + _half(b, 2)


def _q8_0(b: jax.Array) -> jax.Array:
    return _half(b, 0) * _number(lax.bitcast_convert_type(b[..., 2:], jnp.int8))


def _scales_and_mins(b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Six-bit scales and minima of a Q4_K or Q5_K block's eight parts, times their float16 units: `[..., 8, 1]`."""
    s = b[..., 4:16]
    low, middle, high = s[..., 0:4], s[..., 4:8], s[..., 8:12]
    scale = jnp.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=-1)
    least = jnp.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=-1)
    return (_half(b, 0) * _number(scale))[..., None], (_half(b, 2) * _number(least))[..., None]


def _halves(b: jax.Array) -> jax.Array:
    """128 bytes as `[..., 8, 32]`: of each 32 bytes the low halves, then the high ones."""
    q = b.reshape(*b.shape[:-1], 4, 1, 32)
    return jnp.concatenate([q & 15, q >> 4], axis=-2).reshape(*b.shape[:-1], 8, 32)


def _q4_k(b: jax.Array) -> jax.Array:
    scale, least = _scales_and_mins(b)
    return _flat(scale * _number(_halves(b[..., 16:])) - least)


def _q5_k(b: jax.Array) -> jax.Array:
    scale, least = _scales_and_mins(b)
    fifth = (b[..., None, 16:48] >> jnp.arange(8, dtype=jnp.uint8)[:, None]) & 1  # [..., 8, 32]
    return _flat(scale * _number(_halves(b[..., 48:]) | (fifth << 4)) - least)


def _q6_k(b: jax.Array) -> jax.Array:
    low = b[..., :128].reshape(*b.shape[:-1], 2, 1, 64)
    low = jnp.concatenate([low & 15, low >> 4], axis=-2)  # [..., 2, 2, 64]
    high = b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32)
    high = (high >> jnp.arange(0, 8, 2, dtype=jnp.uint8)[:, None]) & 3  # [..., 2, 4, 32]
    q = low.reshape(*b.shape[:-1], 16, 16) | (high.reshape(*b.shape[:-1], 16, 16) << 4)
    scale = _half(b, 208) * _number(lax.bitcast_convert_type(b[..., 192:208], jnp.int8))
    return _flat(scale[..., None] * (_number(q) - 32))


def _quarters(b: jax.Array) -> jax.Array:
    """Bytes `[..., 32 * n]` as `[..., 8 * n, 16]`: of each 32 bytes all lowest two bits, then the next ones."""
    q = b.reshape(*b.shape[:-1], -1, 1, 32) >> jnp.arange(0, 8, 2, dtype=jnp.uint8)[:, None]
    return (q & 3).reshape(*b.shape[:-1], -1, 16)


def _q2_k(b: jax.Array) -> jax.Array:
    scale, least = _half(b, 80) * _number(b[..., :16] & 15), _half(b, 82) * _number(b[..., :16] >> 4)
    return _flat(scale[..., None] * _number(_quarters(b[..., 16:80])) - least[..., None])


def _q3_k(b: jax.Array) -> jax.Array:
    low, high = _nibbles(b[..., 96:104]), b[..., None, 104:108] >> jnp.arange(0, 8, 2, dtype=jnp.uint8)[:, None]
    scale = _number(low | ((high.reshape(low.shape) & 3) << 4)) - 32
    bit = (b[..., None, :32] >> jnp.arange(8, dtype=jnp.uint8)[:, None]) & 1  # [..., 8, 32]
    q = _quarters(b[..., 32:96]) | (bit.reshape(*b.shape[:-1], 16, 16) << 2)
    return _flat((_half(b, 108) * scale)[..., None] * (_number(q) - 4))


def _look_up(table: tuple[int, ...], q: jax.Array) -> jax.Array:
    return jnp.asarray(table, jnp.float32)[q]


def _iq4_nl(b: jax.Array) -> jax.Array:
    return _half(b, 0) * _look_up(NONLINEAR, _nibbles(b[..., 2:]))


def _iq4_xs(b: jax.Array) -> jax.Array:
    low = jnp.stack([b[..., 4:8] & 15, b[..., 4:8] >> 4], axis=-1)  # [..., 4, 2]
    high = (b[..., 2:4, None] >> jnp.arange(0, 8, 2, dtype=jnp.uint8)) & 3  # [..., 2, 4]
    scale = _number(low.reshape(*b.shape[:-1], 8) | (high.reshape(*b.shape[:-1], 8) << 4)) - 32
    q = _nibbles(b[..., 8:].reshape(*b.shape[:-1], 8, 16))
    return _flat((_half(b, 0) * scale)[..., None] * _look_up(NONLINEAR, q))


def _mxfp4(b: jax.Array) -> jax.Array:
    e = b[..., :1].astype(jnp.uint32)
    bits = jnp.where(e < 2, jnp.uint32(0x00200000) << e, (e - 1) << 23)  # 2 ^ (e - 128)
    return lax.bitcast_convert_type(bits, jnp.float32) * _look_up(FLOAT4, _nibbles(b[..., 1:]))


def _halved_float8() -> np.ndarray:
    """Half of each byte's number as e4m3 without a sign (the sign's bit is ignored), but 0 for 0x7f."""
    bits = np.arange(256)
    exponent, fraction = bits >> 3 & 15, bits & 7
    numbers = np.where(exponent > 0, np.ldexp(8.0 + fraction, exponent - 11), fraction * 2.0**-10)
    return np.where(bits == 0x7F, 0, numbers).astype(np.float32)


def _nvfp4(b: jax.Array) -> jax.Array:
    scale = jnp.asarray(_halved_float8())[b[..., :4]]
    q = _nibbles(b[..., 4:].reshape(*b.shape[:-1], 4, 8))  # 16 weights a scale
    return _flat(scale[..., None] * _look_up(FLOAT4, q))


def _words(b: jax.Array) -> jax.Array:
    """Each four bytes as a number, uint32."""
    return lax.bitcast_convert_type(b.reshape(*b.shape[:-1], -1, 4), jnp.uint32)


def _lattice(scale: jax.Array, kind: type[Any], index: jax.Array, word: jax.Array) -> jax.Array:
    """Lattice points by `index[..., 8, n]`; by `word[..., 8]`, seven bits for eight signs each, and a part of the
    scale in the last four."""
    kind.init_grid()
    points = jnp.asarray(kind.grid[0, 0])[index].reshape(*word.shape, 4, 8)
    signs = jnp.asarray(np.frombuffer(IQ2_XXS.ksigns, np.uint8))[(word[..., None] >> jnp.arange(0, 28, 7)) & 127]
    points = jnp.where((signs[..., None] >> jnp.arange(8, dtype=jnp.uint8)) & 1, -points, points)
    scale = scale * (0.5 + _number(word >> 28))
    return _flat(scale[..., None] * points.reshape(*word.shape, 32))


def _iq2_xxs(b: jax.Array) -> jax.Array:
    parts = b[..., 2:].reshape(*b.shape[:-1], 8, 8)
    return _lattice(_half(b, 0) * 0.25, IQ2_XXS, parts[..., :4], _words(parts[..., 4:])[..., 0])


def _iq3_xxs(b: jax.Array) -> jax.Array:
    index = b[..., 2:66].reshape(*b.shape[:-1], 8, 8)
    return _lattice(_half(b, 0) * 0.5, IQ3_XXS, index, _words(b[..., 66:]))


def _flat(values: jax.Array) -> jax.Array:
    return values.reshape(*values.shape[:-2], -1)


@dataclass(frozen=True)
class Kind:
    """A block type: `width` weights in `bytes` bytes."""

    width: int
    bytes: int
    decode: Callable[[jax.Array], jax.Array]


KINDS = {
    "Q4_0": Kind(32, 18, _q4_0),
    "Q4_1": Kind(32, 20, _q4_1),
    "Q5_0": Kind(32, 22, _q5_0),
    "Q5_1": Kind(32, 24, _q5_1),
    "Q8_0": Kind(32, 34, _q8_0),
    "Q2_K": Kind(256, 84, _q2_k),
    "Q3_K": Kind(256, 110, _q3_k),
    "Q4_K": Kind(256, 144, _q4_k),
    "Q5_K": Kind(256, 176, _q5_k),
    "Q6_K": Kind(256, 210, _q6_k),
    "IQ2_XXS": Kind(256, 66, _iq2_xxs),
    "IQ3_XXS": Kind(256, 98, _iq3_xxs),
    "IQ4_NL": Kind(32, 18, _iq4_nl),
    "IQ4_XS": Kind(256, 136, _iq4_xs),
    "MXFP4": Kind(32, 17, _mxfp4),
    "NVFP4": Kind(64, 36, _nvfp4),
}
