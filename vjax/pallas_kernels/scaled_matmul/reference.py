"""What packed codes mean, and products with them: the specification."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # e2m1's magnitudes (OCP Microscaling Formats, 2023)
FOUR_BITS = ("int4", "uint4", "fp4")
BLOCK = 128  # rows and channels of a block scale


class Codes(Protocol):
    """A weight `[*out, in]` in narrow codes, with scales of groups of channels: what `vjax.quant.Scaled` holds.

    `data[*out, in]` int8 or float8, or `[*out, in/2]` uint8 with two codes of four bits in a byte, the even channel's
    in the low half. `scale[*out, in/group]`, or of blocks `[out/128, in/128]`: a float, or uint8, which is e8m0. A
    weight is `(code - zero) * scale * tensor_scale`, where there are a `zero` of scale's shape and a scalar
    `tensor_scale`. `code`: int8, fp8, int4 (a nibble less 8), uint4 (a nibble) or fp4 (e2m1).
    """

    @property
    def data(self) -> jax.Array: ...
    @property
    def scale(self) -> jax.Array: ...
    @property
    def zero(self) -> jax.Array | None: ...
    @property
    def tensor_scale(self) -> jax.Array | None: ...
    @property
    def code(self) -> str: ...


def decode(w: Codes) -> jax.Array:
    """The weight in float32, `[*out, in]`."""
    values = _numbers(w.data, w.code)
    scale = _spread(_float32(w.scale), values.shape)
    if w.zero is not None:
        values = values - _spread(_float32(w.zero), values.shape)
    values = values * scale
    return values if w.tensor_scale is None else values * w.tensor_scale


def matmul(x: jax.Array, w: Codes) -> jax.Array:
    """`x[..., in]` times the decoded weight -> `[..., *out]` in `x`'s dtype, of weights rounded to that dtype."""
    values = decode(w).astype(x.dtype)
    flat = values.reshape(-1, values.shape[-1])
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    out = lax.dot_general(x, flat, (((x.ndim - 1,), (1,)), ((), ())), precision=precision)
    return out.reshape(*x.shape[:-1], *values.shape[:-1])


def _numbers(data: jax.Array, code: str) -> jax.Array:
    if code not in FOUR_BITS:
        return data.astype(jnp.float32)
    nibbles = jnp.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)
    if code == "fp4":
        magnitude = jnp.asarray(FP4, jnp.float32)[nibbles & 7]
        return jnp.where(nibbles > 7, -magnitude, magnitude)
    return nibbles.astype(jnp.float32) - (8 if code == "int4" else 0)


def _float32(scale: jax.Array) -> jax.Array:
    """Of bytes: e8m0, two to the power of the byte less 127."""
    if scale.dtype == jnp.uint8:
        return jnp.exp2(scale.astype(jnp.float32) - 127)
    return scale.astype(jnp.float32)


def _spread(scale: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Each value for all weights that it scales."""
    rows, group = extent(scale.shape, shape)
    wide = jnp.repeat(jnp.repeat(scale, rows, axis=-2), group, axis=-1) if rows > 1 else jnp.repeat(scale, group, -1)
    return wide[..., : shape[-2], : shape[-1]]


def extent(scale: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and channels that one value scales, of shapes `[*out, groups]` and `[*out, in]`.

    Raises `ValueError` where `scale` is neither of groups in a row nor of blocks.
    """
    (out, channels), (rows, groups) = shape[-2:], scale[-2:]
    if rows == out and groups and channels % groups == 0:
        return 1, channels // groups
    if (rows, groups) == (-(-out // BLOCK), -(-channels // BLOCK)):
        return BLOCK, BLOCK
    raise ValueError(f"scales of shape {scale} fit no groups or blocks of a weight {shape}")
