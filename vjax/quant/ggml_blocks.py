"""`GGMLBlocks`: a weight in a GGUF file's own blocks, multiplied without being unpacked in memory (on CPU).

A row of `width` weights is a few bytes for each block of 32 or 256: float16 scales, then packed integers. By default
activations stay float32, and a product differs from the dequantised one in the order of its sums alone. In an engine's
step of few rows they are rounded to 8 bits (`rounded`), so that the products are sums of integers, as llama.cpp's are;
`kernels={"ggml_matmul": "reference"}` keeps them float32 there too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from vjax.native import library
from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.grouped_matmul import Groups, grouped_matmul
from vjax.quant.ggml_kinds import decode

FEW_ROWS = 32  # up to here a product decodes row by row; above, once into memory for a matrix product
UNIT = 32  # activations that share a scale
NO_KERNEL = "it runs on CPUs alone"


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
        rounds = dispatch.in_step() and _few(x) and dispatch.pick("ggml_matmul", NO_KERNEL, native=None) == "native"
        out = (_rounded_product if rounds else _product)(x.astype(jnp.float32), rows, self.kind)
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
    if _few(x):
        return _call("vjax_ggml_matmul", x, rows, kind)
    result = jax.ShapeDtypeStruct((rows.shape[0], x.shape[-1]), jnp.float32)
    # A step's weights wait for what they multiply: free to come first, all layers' would lie in memory at once.
    after = (x,) if dispatch.in_step() else ()
    return _dot(x, jax.ffi.ffi_call("vjax_ggml_dequantize", result)(rows, *after, kind=kind))


@_product.defjvp
def _product_jvp(kind: str, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    # The product is linear in x. Its derivative is plain JAX, which transposes; blocks have no derivative.
    x, rows = primals
    return _product(x, rows, kind), _dot(tangents[0], decode(rows, kind))


def rounded(x: jax.Array) -> jax.Array:
    """`x[..., in]` float32 as `_rounded_product` takes it: each 32 as the largest of them times -127/127 to 127/127."""
    units = x.reshape(*x.shape[:-1], -1, UNIT)
    largest = jnp.max(jnp.abs(units), axis=-1, keepdims=True)
    inverse = jnp.where(largest > 1e-30, 127 / largest, 0)
    return (jnp.round(units * inverse) * (largest * np.float32(1 / 127))).reshape(x.shape)


def _rounded_product(x: jax.Array, rows: jax.Array, kind: str) -> jax.Array:
    """`rounded(x) @ decode(rows).T`, natively. Has no derivative."""
    return _call("vjax_ggml_matmul_rounded", x, rows, kind)


def _call(target: str, x: jax.Array, rows: jax.Array, kind: str) -> jax.Array:
    result = jax.ShapeDtypeStruct((*x.shape[:-1], rows.shape[0]), jnp.float32)
    return jax.ffi.ffi_call(target, result, vmap_method="expand_dims")(x, rows, kind=kind)


def _few(x: jax.Array) -> bool:
    return math.prod(x.shape[:-1]) <= FEW_ROWS


def _dot(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.dot_general(x, w, (((x.ndim - 1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
