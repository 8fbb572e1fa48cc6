"""Causal depthwise convolution over a few tokens, with the inputs before a row's first token carried as state."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vjax.layers.paging import PagedStep


def short_conv(
    x: jax.Array, w: jax.Array, bias: jax.Array | None, window: jax.Array, step: PagedStep | None
) -> tuple[jax.Array, jax.Array]:
    """`y[t] = sum_i w[:, i] * x[t - n + 1 + i]` for `x[T, *C]` and `w[*C, n]`, in float32.

    `window[S, n - 1, *C]`: the inputs before each row, oldest first. Returns `y[T, *C]` float32 and the
    window after each row.
    """
    x, w = x.astype(jnp.float32), jnp.moveaxis(w.astype(jnp.float32), -1, 0)  # [n, *C]
    if step is not None and step.decode:
        seen = jnp.concatenate([window, x[:, None]], axis=1)  # [S, n, *C]
        y, new = jnp.sum(seen * w, axis=1), seen[:, 1:]
    else:
        y, new = _ragged(x, w, window, step)
    return (y if bias is None else y + bias.astype(jnp.float32)), new


def _ragged(x: jax.Array, w: jax.Array, window: jax.Array, step: PagedStep | None) -> tuple[jax.Array, jax.Array]:
    tokens, n = x.shape[0], w.shape[0]
    if step is None:
        row, query_start = jnp.zeros(tokens, jnp.int32), jnp.array([0, tokens])
    else:
        row, query_start = step.row_of_token, step.query_start

    def inputs(row: jax.Array, offset: jax.Array) -> jax.Array:
        """What row `row` was given `offset` tokens after its first: in this step, or, where negative, before it."""
        now = x[jnp.clip(query_start[row] + offset, 0, tokens - 1)]
        before = window[row, jnp.clip(n - 1 + offset, 0, n - 2)]
        return jnp.where((offset >= 0).reshape(-1, *[1] * (x.ndim - 1)), now, before)

    offset = jnp.arange(tokens) - query_start[row]
    y = sum(w[i] * inputs(row, offset - (n - 1) + i) for i in range(n - 1)) + w[n - 1] * x
    rows, count = jnp.arange(window.shape[0]), jnp.diff(query_start)
    new = jnp.stack([inputs(rows, count - (n - 1) + i) for i in range(n - 1)], axis=1)
    return y, new
