"""Weights that know how to multiply. A layer calls `matmul` and never asks how a weight is stored."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax

from vjax.pallas_kernels import grouped_matmul as grouped
from vjax.pallas_kernels import matvec
from vjax.pallas_kernels.grouped_matmul import Groups
from vjax.quant.dense import Dense
from vjax.quant.ggml_blocks import GGMLBlocks

__all__ = [
    "Dense", "GGMLBlocks", "Weight", "grouped_matmul", "grouped_swiglu", "matmul", "matmul_each", "rows", "swiglu",
]  # fmt: skip


class Weight(Protocol):
    """A pytree holding `[*out, in]` in some storage format."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> jnp.dtype: ...
    def dequantize(self) -> jax.Array: ...
    def matmul(self, x: jax.Array) -> jax.Array: ...
    def rows(self, ids: jax.Array) -> jax.Array: ...
    def grouped_matmul(self, x: jax.Array, groups: Groups, *, lay_out: bool = False) -> jax.Array: ...


def matmul(x: jax.Array, w: Weight) -> jax.Array:
    """`x[..., in] @ w[*out, in].T -> [..., *out]`, in `x`'s dtype."""
    return w.matmul(x)


def matmul_each(x: jax.Array, w: Weight) -> jax.Array:
    """A product for each head: `x[T, H, in]` and `w[H, out, in]` -> `[T, H, out]`, in `x`'s dtype."""
    values = w.data if isinstance(w, Dense) else w.dequantize()
    return jnp.einsum("thi,hoi->tho", x, values.astype(x.dtype), precision=lax.Precision.HIGHEST)


def swiglu(x: jax.Array, w: Weight) -> jax.Array:
    """`silu(x[T, in] @ w[0].T) * (x @ w[1].T) -> [T, F]` for `w[2, F, in]` (Shazeer, 2020), in `x`'s dtype."""
    if isinstance(w, Dense) and matvec.runs(x, w.data):
        return matvec.swiglu(x, w.data)
    both = matmul(x, w)
    return jax.nn.silu(both[:, 0]) * both[:, 1]


def rows(w: Weight, ids: jax.Array) -> jax.Array:
    """Embedding rows `w[ids] -> [*ids.shape, in]`."""
    return w.rows(ids)


def grouped_matmul(x: jax.Array, w: Weight, groups: Groups, *, lay_out: bool = False) -> jax.Array:
    """Rows `x[rows, in]` of the groups' blocks, or those of tokens `x[T, in]` to be laid out, each times its group's
    `w[group, *out, in].T` -> `[rows, *out]`."""
    return w.grouped_matmul(x, groups, lay_out=lay_out)


def grouped_swiglu(x: jax.Array, w: Weight, groups: Groups) -> jax.Array:
    """`silu(x @ w[group, 0].T) * (x @ w[group, 1].T) -> [rows, F]` (Shazeer, 2020) for tokens `x[T, in]`, to be laid
    out, and `w[groups, 2, F, in]`."""
    if isinstance(w, Dense):
        return grouped.grouped_swiglu(x, w.data, groups)
    both = grouped_matmul(x, w, groups, lay_out=True)
    return jax.nn.silu(both[:, 0]) * both[:, 1]
