"""When kernels take a product with packed codes, and the products."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.grouped_matmul import Groups
from vjax.pallas_kernels.scaled_matmul import reference
from vjax.pallas_kernels.scaled_matmul.reference import Codes

DTYPES = (jnp.bfloat16, jnp.float16)
CHANNELS = 16  # a row of the weight, and a group of its channels, has a multiple of them
MAX_ROWS = 256  # with more, decoding the whole weight once costs less than decoding it for every block of rows


class Flat(NamedTuple):
    """`Codes` of one axis of outputs."""

    data: jax.Array
    scale: jax.Array
    zero: jax.Array | None
    tensor_scale: jax.Array | None
    code: str


def runs(x: jax.Array, w: Codes) -> bool:
    """Whether kernels multiply rows `x[T, in]`, of a 16-bit type and in a step, by `w`.

    Outside of steps products must be differentiable and batchable; in float32 XLA's are exact.
    """
    if x.ndim != 2 or x.shape[0] < 1 or x.dtype not in DTYPES or not dispatch.in_step():
        return False
    return dispatch.pick("scaled_matmul", _obstacle(w, x.shape[-1])) == "triton"


def matmul(x: jax.Array, w: Codes) -> jax.Array:
    """`x[T, in]` times the decoded `w[*out, in]` -> `[T, *out]` in `x`'s dtype, accumulated in float32."""
    # Imported here: Triton is not on every machine, and slow to import.
    from vjax.pallas_kernels.scaled_matmul import triton_row, triton_tile

    if x.shape[0] > MAX_ROWS:
        return _decoded(x, w)
    multiply = triton_row.matmul if x.shape[0] == 1 else triton_tile.matmul
    return multiply(x, _flat(w, 1)).reshape(x.shape[0], *w.data.shape[:-1])


def swiglu(x: jax.Array, w: Codes) -> jax.Array:
    """`silu(x[T, in] @ w[0].T) * (x @ w[1].T) -> [T, F]` for `w[2, F, in]` (Shazeer, 2020), as `matmul` computes it."""
    from vjax.pallas_kernels.scaled_matmul import triton_row

    if x.shape[0] == 1:
        return triton_row.swiglu(x, w)
    both = matmul(x, w)
    return jax.nn.silu(both[:, 0]) * both[:, 1]


def grouped_runs(x: jax.Array, w: Codes, groups: Groups) -> bool:
    """Whether kernels multiply rows that `groups` lays out by `w[groups, *out, in]`."""
    if not groups.kernel or x.dtype not in DTYPES:
        return False
    return dispatch.pick("scaled_matmul", _obstacle(w, x.shape[-1])) == "triton"


def grouped_matmul(x: jax.Array, w: Codes, groups: Groups, *, lay_out: bool = False) -> jax.Array:
    """`x[rows, in]`, as `groups` lays rows out, or to be laid out from `x[T, in]`, times each block's decoded
    `w[group, *out, in]` -> `[rows, *out]` in `x`'s dtype."""
    from vjax.pallas_kernels.scaled_matmul import triton_tile

    out = triton_tile.grouped_matmul(x, _flat(w, 2), groups, lay_out)
    return out.reshape(groups.rows, *w.data.shape[1:-1])


def grouped_swiglu(x: jax.Array, w: Codes, groups: Groups) -> jax.Array:
    """`silu(x @ w[group, 0].T) * (x @ w[group, 1].T) -> [rows, F]` (Shazeer, 2020) for `x[T, in]`, laid out by
    `groups`, and `w[groups, 2, F, in]`."""
    from vjax.pallas_kernels.scaled_matmul import triton_tile

    return triton_tile.grouped_swiglu(x, w, groups)


def _decoded(x: jax.Array, w: Codes) -> jax.Array:
    """With the weight decoded into memory. The barrier keeps XLA from decoding it anew for every block of rows."""
    values = lax.optimization_barrier(reference.decode(w).astype(x.dtype))
    return jnp.einsum("ti,...i->t...", x, values)


def _flat(w: Codes, leading: int) -> Flat:
    """With `leading` axes in all before the channels."""
    flat = lambda a: a.reshape(*a.shape[: leading - 1], -1, a.shape[-1])
    return Flat(flat(w.data), flat(w.scale), None if w.zero is None else flat(w.zero), w.tensor_scale, w.code)


def _obstacle(w: Codes, channels: int) -> str | None:
    """Why kernels cannot multiply with `w`, or None."""
    rows, group = reference.extent(w.scale.shape, (*w.data.shape[:-1], channels))
    if channels % CHANNELS or group % CHANNELS:
        return f"weights have {channels} channels in groups of {group}"
    if rows > 1 and w.data.ndim > 2 and w.data.shape[-2] % rows:
        return f"blocks of {rows} rows do not divide {w.data.shape[-2]}"
    return None
