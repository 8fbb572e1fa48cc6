"""What recurrent layers share: where their state comes from and goes to, and how a step's ragged rows run through a
recurrence, token by token or in chunks.

T tokens in S rows. A recurrence is two functions of its inputs and state, pytrees of float32 arrays:

* `one(inputs[S, ...], state[S, ...]) -> outputs[S, ...], state`: one token of every row, for decoding.
* `many(inputs[C, ...], state[...]) -> outputs[C, ...], state`: C consecutive tokens of one row, in parallel. Inputs of
  zeros must leave the state as it is, since they pad the last chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from vjax.layers.context import Context
from vjax.layers.paging import STATE, Cache, PagedStep

CHUNK = 64

einsum = partial(jnp.einsum, precision=lax.Precision.HIGHEST)

State = dict[str, jax.Array]
Arrays = tuple[tuple[str, tuple[int, ...], tuple[str | None, ...]], ...]  # name, shape, axes
Recurrence = Callable[[Any, Any], tuple[jax.Array, Any]]


def read_state(ctx: Context, cache: Cache | None, layer: int, arrays: Arrays) -> State:
    """The state `[S, ...]` of each row in the cache's `layer`; zeros for the one row of a pass without a cache."""
    if cache is None or ctx.step is None:
        return {name: jnp.zeros((1, *shape), jnp.float32) for name, shape, _ in arrays}
    return cache[STATE].read(layer, ctx.step)


def write_state(ctx: Context, cache: Cache | None, layer: int, state: State) -> Cache | None:
    if cache is None or ctx.step is None:
        return cache
    return {**cache, STATE: cache[STATE].write(layer, ctx.step, state)}


def recur(
    inputs: Any, state: Any, step: PagedStep | None, one: Recurrence, many: Recurrence, chunk: int = CHUNK
) -> tuple[jax.Array, Any]:
    """`inputs[T, ...]` and `state[S, ...]` -> outputs `[T, ...]` and the state after each row.

    Without a step the tokens are one row, S == 1, and the pass can be differentiated.
    """
    if step is None:
        return _one_row(inputs, state, many, chunk)
    if step.decode:
        return one(inputs, state)
    return _ragged(inputs, state, step, one, many, chunk)


def decays(log_decay: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """How what a state holds fades in a chunk, from each token's log decay `[C, *H]` <= 0.

    Returns the log of what is left after each token of the state before the chunk `[C, *H]`; what is left at token t
    of what token u <= t added `[*H, C, C]`; and what is left of that at the chunk's end `[*H, C]`.
    """
    tokens = log_decay.shape[0]
    by_head = jnp.moveaxis(log_decay, 0, -1)[..., :, None]  # [*H, C, 1]
    # Summed from u to t alone: the difference of two long sums would lose digits.
    after = jnp.tril(jnp.ones((tokens, tokens), bool), -1)
    summed = jnp.cumsum(jnp.where(after, by_head, 0), axis=-2)
    between = jnp.exp(jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), summed, -jnp.inf))
    total = jnp.cumsum(log_decay, axis=0)
    return total, between, between[..., -1, :]


def _one_row(inputs: Any, state: Any, many: Recurrence, chunk: int) -> tuple[jax.Array, Any]:
    tokens = jax.tree.leaves(inputs)[0].shape[0]
    size = min(chunk, tokens)

    def split(x: jax.Array) -> jax.Array:
        return _padded(x, -tokens % size).reshape(-1, size, *x.shape[1:])

    def body(state: Any, piece: Any) -> tuple[Any, jax.Array]:
        out, state = many(piece, state)
        return state, out

    last, out = lax.scan(body, jax.tree.map(lambda x: x[0], state), jax.tree.map(split, inputs))
    return out.reshape(-1, *out.shape[2:])[:tokens], jax.tree.map(lambda x: x[None], last)


def _ragged(
    inputs: Any, state: Any, step: PagedStep, one: Recurrence, many: Recurrence, chunk: int
) -> tuple[jax.Array, Any]:  # fmt: skip
    """Rows of one token, mostly decode rows, go all at once; the others chunk by chunk, as many as there are."""
    tokens = jax.tree.leaves(inputs)[0].shape[0]
    size = min(chunk, tokens)
    start, count = step.query_start[:-1], jnp.diff(step.query_start)
    single = count == 1
    at_start = jnp.minimum(start, tokens - 1)
    first_out, first_state = one(jax.tree.map(lambda x: x[at_start], inputs), state)
    state = jax.tree.map(lambda new, old: jnp.where(_like(single, new), new, old), first_state, state)
    out = jnp.zeros((tokens + size, *first_out.shape[1:]), first_out.dtype)
    out = out.at[jnp.where(single, start, tokens + size)].set(first_out, mode="drop")

    chunks = jnp.where(single, 0, -(-count // size))
    ends = jnp.cumsum(chunks)
    padded = jax.tree.map(lambda x: _padded(x, size), inputs)

    def body(i: jax.Array, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        out, state = carry
        row = jnp.sum(ends <= i)
        before = (i - ends[row] + chunks[row]) * size  # tokens of the row in earlier chunks
        at, valid = start[row] + before, jnp.arange(size) < count[row] - before

        def piece(x: jax.Array) -> jax.Array:
            part = lax.dynamic_slice_in_dim(x, at, size)
            return jnp.where(_like(valid, part), part, 0)

        new, after = many(jax.tree.map(piece, padded), jax.tree.map(lambda x: x[row], state))
        new = jnp.where(_like(valid, new), new, lax.dynamic_slice_in_dim(out, at, size))  # the rest is other rows'
        out = lax.dynamic_update_slice_in_dim(out, new, at, 0)
        return out, jax.tree.map(lambda x, value: x.at[row].set(value), state, after)

    out, state = lax.fori_loop(0, ends[-1], body, (out, state))
    return out[:tokens], state


def _padded(x: jax.Array, rows: int) -> jax.Array:
    return jnp.pad(x, ((0, rows), *[(0, 0)] * (x.ndim - 1)))


def _like(mask: jax.Array, x: jax.Array) -> jax.Array:
    """`mask[n]` with axes added, so that it selects rows of `x`."""
    return mask.reshape(-1, *[1] * (x.ndim - 1))
