"""The specification: block after block, so that no more than one group's matrix is copied at a time. Differentiable."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def grouped_matmul(x: jax.Array, w: jax.Array, group: jax.Array) -> jax.Array:
    """`x[n * block, in]` times `w[group[i], *out, in].T` for each block i -> `[n * block, *out]` in `x`'s dtype."""
    count = group.shape[0]
    flat = w.reshape(w.shape[0], -1, w.shape[-1])
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None

    def one(_: None, block: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        rows, index = block
        matrix = lax.dynamic_index_in_dim(flat, index, keepdims=False).astype(x.dtype)
        return None, lax.dot_general(rows, matrix, (((1,), (1,)), ((), ())), precision=precision)

    _, out = lax.scan(one, None, (x.reshape(count, -1, x.shape[-1]), group))
    return out.reshape(x.shape[0], *w.shape[1:-1])
