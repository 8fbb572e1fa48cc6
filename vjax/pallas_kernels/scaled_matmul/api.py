"""When kernels take a product with packed codes, and the products."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.scaled_matmul import reference
from vjax.pallas_kernels.scaled_matmul.reference import Codes

DTYPES = (jnp.bfloat16, jnp.float16)
CHANNELS = 16  # a row of the weight, and a group of its channels, has a multiple of them
MAX_ROWS = 1


class Flat(NamedTuple):
    """`Codes` of one axis of outputs."""

    data: jax.Array
    scale: jax.Array
    zero: jax.Array | None
    tensor_scale: jax.Array | None
    code: str


def runs(x: jax.Array, w: Codes) -> bool:
    """Whether kernels multiply `x` by `w`: up to `MAX_ROWS` rows `x[T, in]` of a 16-bit type, in a step.

    Outside of steps products must be differentiable and batchable; in float32 XLA's are exact.
    """
    if x.ndim != 2 or not 1 <= x.shape[0] <= MAX_ROWS or x.dtype not in DTYPES or not dispatch.in_step():
        return False
    return dispatch.pick("scaled_matmul", _obstacle(w, x.shape[-1])) == "triton"


def matmul(x: jax.Array, w: Codes) -> jax.Array:
    """`x[T, in]` times the decoded `w[*out, in]` -> `[T, *out]` in `x`'s dtype, accumulated in float32."""
    # Imported here: Triton is not on every machine, and slow to import.
    from vjax.pallas_kernels.scaled_matmul import triton_row

    return triton_row.matmul(x, _flat(w, 1)).reshape(x.shape[0], *w.data.shape[:-1])


def swiglu(x: jax.Array, w: Codes) -> jax.Array:
    """`silu(x[T, in] @ w[0].T) * (x @ w[1].T) -> [T, F]` for `w[2, F, in]` (Shazeer, 2020), as `matmul` computes it."""
    from vjax.pallas_kernels.scaled_matmul import triton_row

    return triton_row.swiglu(x, w)


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
