"""The specification: block after block, so that no more than one group's matrix is copied at a time. Differentiable."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def group_rows(ids: jax.Array, groups: int, block: int, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`place`, `token` and `group` of `api.Groups` for `ids[T, k]`, with `count` blocks."""
    flat = ids.reshape(-1)
    mine = (flat[:, None] == jnp.arange(groups)).astype(jnp.int32)  # [N, groups]
    rank = jnp.sum((jnp.cumsum(mine, axis=0) - 1) * mine, axis=1)  # among the rows of its group
    end = jnp.cumsum(-(-jnp.sum(mine, axis=0) // block))  # blocks up to each group's last, [groups]
    start = jnp.concatenate([jnp.zeros(1, end.dtype), end[:-1]])
    group = jnp.sum(end <= jnp.arange(count)[:, None], axis=1)
    place = start[flat] * block + rank
    token = jnp.zeros(count * block, jnp.int32).at[place].set(jnp.arange(flat.shape[0]) // (flat.size // ids.shape[0]))
    return place, token, group


def grouped_matmul(x: jax.Array, w: jax.Array, group: jax.Array) -> jax.Array:
    """`x[n * block, in]` times `w[group[i], *out, in].T` for each block i -> `[n * block, *out]` in `x`'s dtype."""
    count = group.shape[0]
    flat = w.reshape(w.shape[0], -1, w.shape[-1])
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None

    def one(_: None, block: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        rows, index = block  # of an unused block: past the last matrix, which is taken then
        matrix = lax.dynamic_index_in_dim(flat, index, keepdims=False).astype(x.dtype)
        return None, lax.dot_general(rows, matrix, (((1,), (1,)), ((), ())), precision=precision)

    _, out = lax.scan(one, None, (x.reshape(count, -1, x.shape[-1]), group))
    return out.reshape(x.shape[0], *w.shape[1:-1])
