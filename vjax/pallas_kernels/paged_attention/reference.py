"""Paged attention in plain JAX: the specification, and the path on CPU and on GPUs without a kernel.

q `[T, K, G, D]`; pools `[layers * pages, page_size, K, D]`; page tables `[S, W]` that already carry the layer's offset.
Cost follows W, the width of the page table, not the length of each row: the caller passes a table cut to a bucket.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

MASKED = -1e30  # finite: a row with no visible key must give numbers, not NaN
TILE = 32  # query tokens handled together in a ragged step; one tile never spans two rows


def gather_pages(pool: jax.Array, pages: jax.Array) -> jax.Array:
    """`pool[pages]` as tokens: `[..., W]` -> `[..., W * page_size, K, D]`."""
    got = pool.at[pages].get(mode="clip")
    return got.reshape(*pages.shape[:-1], pages.shape[-1] * pool.shape[1], *pool.shape[2:])


def visible(key: jax.Array, query: jax.Array, kv_len: jax.Array, window: int | None) -> jax.Array:
    """Whether a query at position `query` sees the key at position `key` of a row with `kv_len` keys."""
    seen = (key <= query) & (key < kv_len)
    return seen if window is None else seen & (key > query - window)


def decode_attention(
    q: jax.Array, k_pool: jax.Array, v_pool: jax.Array, page_table: jax.Array, kv_len: jax.Array, *, scale: float,
    window: int | None = None, softcap: float | None = None,
) -> jax.Array:  # fmt: skip
    """One query token a row, at position `kv_len - 1`. q `[S, K, G, D]` -> `[S, K, G, D]`."""
    k, v = gather_pages(k_pool, page_table), gather_pages(v_pool, page_table)  # [S, C, K, D]
    scores = jnp.einsum("skgd,sckd->skgc", q, k.astype(q.dtype), precision=lax.Precision.HIGHEST)
    scores = _capped(scores.astype(jnp.float32) * scale, softcap)
    keys = jnp.arange(k.shape[1])
    seen = visible(keys, kv_len[:, None] - 1, kv_len[:, None], window)  # [S, C]
    weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, MASKED), axis=-1)
    return jnp.einsum("skgc,sckd->skgd", weights.astype(q.dtype), v.astype(q.dtype), precision=lax.Precision.HIGHEST)


def ragged_attention(
    q: jax.Array, k_pool: jax.Array, v_pool: jax.Array, page_table: jax.Array, kv_len: jax.Array,
    query_start: jax.Array, positions: jax.Array, *, scale: float, window: int | None = None,
    softcap: float | None = None,
) -> jax.Array:  # fmt: skip
    """Rows of any length: row r's queries are tokens `query_start[r] .. query_start[r + 1]`. Returns q's shape;
    tokens outside every row are zero. Works through tiles of query tokens, as many as the rows really need.
    """
    total, lane = q.shape[0], jnp.arange(TILE)
    tiles = (query_start[1:] - query_start[:-1] + TILE - 1) // TILE  # [S]
    tile_end = jnp.cumsum(tiles)

    def tile(i: jax.Array, out: jax.Array) -> jax.Array:
        row = jnp.searchsorted(tile_end, i, side="right")
        first = query_start[row] + (i - (tile_end[row] - tiles[row])) * TILE
        token = first + lane
        valid = token < query_start[row + 1]
        queries = q.at[token].get(mode="clip")  # [TILE, K, G, D]
        k, v = (gather_pages(pool, page_table[row]).astype(q.dtype) for pool in (k_pool, v_pool))  # [C, K, D]
        scores = jnp.einsum("tkgd,ckd->kgtc", queries, k, precision=lax.Precision.HIGHEST)
        scores = _capped(scores.astype(jnp.float32) * scale, softcap)
        position = positions.at[token].get(mode="clip")
        seen = visible(jnp.arange(k.shape[0]), position[:, None], kv_len[row], window)  # [TILE, C]
        weights = jax.nn.softmax(jnp.where(seen, scores, MASKED), axis=-1).astype(q.dtype)
        new = jnp.einsum("kgtc,ckd->tkgd", weights, v, precision=lax.Precision.HIGHEST)
        return out.at[jnp.where(valid, token, total)].set(new, mode="drop")

    return lax.fori_loop(0, tile_end[-1], tile, jnp.zeros_like(q))


def _capped(scores: jax.Array, softcap: float | None) -> jax.Array:
    return scores if softcap is None else jnp.tanh(scores / softcap) * softcap
