"""Paged attention in plain JAX: the specification, and the path on CPU and on GPUs without a kernel.

q `[T, K, G, D]`; pools `[layers * pages, page_size, K, D]`; page tables `[S, W]` that already carry the layer's offset.
Without a pool of values, as in multi-head latent attention, that of keys is `[layers * pages, page_size, D]`: there is
one key head, and values are its first `value_dim` channels.
Keys are visited in blocks with a running softmax (Milakov and Gimelshein, 2018), as many as the longest row needs: cost
follows real lengths, so a graph does not have to be compiled for every context length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

MASKED = -1e30  # finite: a row with no visible key must give numbers, not NaN
TILE = 32  # query tokens handled together in a ragged step; a tile never spans two rows
BLOCK = 256  # keys handled together


class Running(NamedTuple):
    """Softmax so far: its largest score, its sum relative to that, and the weighted values."""

    peak: jax.Array  # [..., Q]
    total: jax.Array  # [..., Q]
    values: jax.Array  # [..., Q, D]


def decode_attention(
    q: jax.Array, k_pool: jax.Array, v_pool: jax.Array | None, page_table: jax.Array, kv_len: jax.Array, *,
    scale: float, window: int | None = None, softcap: float | None = None, value_dim: int | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """One query token a row, at position `kv_len - 1`. q `[S, K, G, D]` -> `[S, K, G, Dv]`."""
    width = q.shape[-1] if v_pool is not None else value_dim
    first = 0 if window is None else jnp.min(jnp.maximum(kv_len - window, 0))

    def block(keys: jax.Array, pages: jax.Array, state: Running) -> Running:
        k = _gather(k_pool, pages, q.dtype)  # [S, C, K, D]
        v = k[..., :value_dim] if v_pool is None else _gather(v_pool, pages, q.dtype)
        scores = jnp.einsum("skgd,sckd->skgc", q, k, precision=lax.Precision.HIGHEST)
        seen = _visible(keys, kv_len[:, None] - 1, kv_len[:, None], window)  # [S, C]
        return _absorb(state, _scaled(scores, scale, softcap), seen[:, None, None], v, "skgc,sckd->skgd")

    state = _over_blocks(page_table, k_pool.shape[1], first, jnp.max(kv_len), _start(q, width, sinks), block)
    return (state.values / state.total[..., None]).astype(q.dtype)


def ragged_attention(
    q: jax.Array, k_pool: jax.Array, v_pool: jax.Array | None, page_table: jax.Array, kv_len: jax.Array,
    query_start: jax.Array, positions: jax.Array, *, scale: float, window: int | None = None,
    softcap: float | None = None, value_dim: int | None = None, sinks: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """Rows of any length: row r's queries are tokens `query_start[r] .. query_start[r + 1]`. Returns `[T, K, G, Dv]`;
    tokens outside every row are zero. Works through tiles of query tokens, as many as the rows really need.
    """
    tokens, lane, width = q.shape[0], jnp.arange(TILE), q.shape[-1] if v_pool is not None else value_dim
    by_query = None if sinks is None else sinks[..., None]
    tiles = (query_start[1:] - query_start[:-1] + TILE - 1) // TILE  # [S]
    tile_end = jnp.cumsum(tiles)

    def tile(i: jax.Array, out: jax.Array) -> jax.Array:
        row = jnp.searchsorted(tile_end, i, side="right")
        token = query_start[row] + (i - (tile_end[row] - tiles[row])) * TILE + lane
        valid = token < query_start[row + 1]
        queries = q.at[token].get(mode="clip").transpose(1, 2, 0, 3)  # [K, G, TILE, D]
        position = positions.at[token].get(mode="clip")
        last = jnp.max(jnp.where(valid, position, 0)) + 1
        first = 0 if window is None else jnp.maximum(position[0] - window + 1, 0)

        def block(keys: jax.Array, pages: jax.Array, state: Running) -> Running:
            k = _gather(k_pool, pages, q.dtype)[0]  # [C, K, D]
            v = k[..., :value_dim] if v_pool is None else _gather(v_pool, pages, q.dtype)[0]
            scores = jnp.einsum("kgtd,ckd->kgtc", queries, k, precision=lax.Precision.HIGHEST)
            seen = _visible(keys, position[:, None], kv_len[row], window)  # [TILE, C]
            return _absorb(state, _scaled(scores, scale, softcap), seen, v, "kgtc,ckd->kgtd")

        state = _over_blocks(
            page_table[row][None], k_pool.shape[1], first, last, _start(queries, width, by_query), block
        )
        new = (state.values / state.total[..., None]).astype(q.dtype).transpose(2, 0, 1, 3)
        return out.at[jnp.where(valid, token, tokens)].set(new, mode="drop")

    return lax.fori_loop(0, tile_end[-1], tile, jnp.zeros((*q.shape[:-1], width), q.dtype))


def _over_blocks(
    page_table: jax.Array, page_size: int, first: jax.Array | int, last: jax.Array, state: Running,
    block: Callable[[jax.Array, jax.Array, Running], Running],
) -> Running:  # fmt: skip
    """`block(key positions, page ids [S, block's pages], state)` for the blocks that hold keys `first .. last`."""
    width = min(max(BLOCK // page_size, 1), page_table.shape[1])
    keys = width * page_size
    # A table that is no multiple of a block is padded with page 0, whose keys lie past every row's end.
    table = jnp.pad(page_table, ((0, 0), (0, -page_table.shape[1] % width)))

    def body(i: jax.Array, state: Running) -> Running:
        pages = lax.dynamic_slice_in_dim(table, i * width, width, axis=1)
        return block(i * keys + jnp.arange(keys), pages, state)

    return lax.fori_loop(first // keys, (last + keys - 1) // keys, body, state)


def _gather(pool: jax.Array, pages: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Pages as tokens: `pool[pages[S, W]]` -> `[S, W * page_size, K, D]`."""
    got = pool.at[pages].get(mode="clip")
    heads = pool.shape[2] if pool.ndim == 4 else 1
    return got.reshape(pages.shape[0], -1, heads, pool.shape[-1]).astype(dtype)


def _visible(key: jax.Array, query: jax.Array, kv_len: jax.Array, window: int | None) -> jax.Array:
    """Whether a query at position `query` sees the key at position `key` of a row with `kv_len` keys."""
    seen = (key <= query) & (key < kv_len)
    return seen if window is None else seen & (key > query - window)


def _scaled(scores: jax.Array, scale: float, softcap: float | None) -> jax.Array:
    scores = scores.astype(jnp.float32) * scale
    return scores if softcap is None else jnp.tanh(scores / softcap) * softcap


def _start(q: jax.Array, width: int | None, sinks: jax.Array | None) -> Running:
    """Nothing so far, or the sinks of each head: a score of theirs, and no value."""
    shape = q.shape[:-1]
    values = jnp.zeros((*shape, width), jnp.float32)
    if sinks is not None:
        return Running(jnp.broadcast_to(sinks.astype(jnp.float32), shape), jnp.ones(shape, jnp.float32), values)
    return Running(jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32), values)


def _absorb(state: Running, scores: jax.Array, seen: jax.Array, v: jax.Array, rule: str) -> Running:
    """Add a block's scores and values. What a fully masked block adds is wiped by the first visible score."""
    scores = jnp.where(seen, scores, MASKED)
    peak = jnp.maximum(state.peak, jnp.max(scores, axis=-1))
    weights = jnp.exp(scores - peak[..., None])
    keep = jnp.exp(state.peak - peak)
    added = jnp.einsum(rule, weights.astype(v.dtype), v, precision=lax.Precision.HIGHEST)
    return Running(
        peak, state.total * keep + jnp.sum(weights, axis=-1), state.values * keep[..., None] + added
    )  # fmt: skip
