"""`GGMLBlocks`: a weight in a GGUF file's own blocks, multiplied without being unpacked in memory (on CPU).

A row of `width` weights is a few bytes for each block of 32 or 256: float16 scales, then packed integers. Weights are
decoded to float32 in registers and activations stay float32, so a product differs from the dequantised one in the order
of its sums alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from vjax.native import library
from vjax.pallas_kernels.grouped_matmul import Groups, grouped_matmul

FEW_ROWS = 32  # up to here a product decodes in registers; above, once into memory for a matrix product


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GGMLBlocks:
    """`data[*out, row_bytes]` uint8 in blocks of type `kind`, `width` weights a row."""

    data: jax.Array
    kind: str = field(metadata=dict(static=True))
    width: int = field(metadata=dict(static=True))

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.data.shape[:-1], self.width)

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(jnp.float32)

    def dequantize(self) -> jax.Array:
        """The weight in float32, `[*out, in]`: the specification that every kernel is tested against."""
        return decode(self.data, self.kind)

    def matmul(self, x: jax.Array) -> jax.Array:
        """`x[..., in]` -> `[..., *out]` in `x`'s dtype, accumulated in float32."""
        rows = self.data.reshape(-1, self.data.shape[-1])
        out = _product(x.astype(jnp.float32), rows, self.kind)
        return out.reshape(*x.shape[:-1], *self.data.shape[:-1]).astype(x.dtype)

    def grouped_matmul(self, x: jax.Array, groups: Groups, *, lay_out: bool = False) -> jax.Array:
        """Decoded whole: the loader leaves experts unpacked."""
        return grouped_matmul(x, self.dequantize(), groups, lay_out=lay_out)

    def rows(self, ids: jax.Array) -> jax.Array:
        """`w[ids]` float32: only these rows are decoded. Ids out of range are clamped."""
        return decode(self.data.at[ids].get(mode="clip"), self.kind)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _product(x: jax.Array, rows: jax.Array, kind: str) -> jax.Array:
    """`x[..., in] @ decode(rows[out, row_bytes]).T`."""
    if not (jax.default_backend() == "cpu" and library.available()):
        return _dot(x, decode(rows, kind))
    if math.prod(x.shape[:-1]) <= FEW_ROWS:
        result = jax.ShapeDtypeStruct((*x.shape[:-1], rows.shape[0]), jnp.float32)
        return jax.ffi.ffi_call("vjax_ggml_matmul", result, vmap_method="expand_dims")(x, rows, kind=kind)
    result = jax.ShapeDtypeStruct((rows.shape[0], x.shape[-1]), jnp.float32)
    return _dot(x, jax.ffi.ffi_call("vjax_ggml_dequantize", result)(rows, kind=kind))


@_product.defjvp
def _product_jvp(kind: str, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    # The product is linear in x. Its derivative is plain JAX, which transposes; blocks have no derivative.
    x, rows = primals
    return _product(x, rows, kind), _dot(tangents[0], decode(rows, kind))


def _dot(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.dot_general(x, w, (((x.ndim - 1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)


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
    "Q4_K": Kind(256, 144, _q4_k),
    "Q5_K": Kind(256, 176, _q5_k),
    "Q6_K": Kind(256, 210, _q6_k),
}
