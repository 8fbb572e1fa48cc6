"""Sparse attention over latents (DeepSeek-V3.2, 2025): a small indexer scores every earlier token for each query, and
attention sees the best `topk` alone.

The indexer's keys, one of D channels a token, have a pool of their own. T tokens, I heads of the indexer, H heads of
attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from vjax.layers.attention import AttentionSpec, attention_weights
from vjax.layers.context import Context
from vjax.layers.mla import absorb, expand
from vjax.layers.norms import norm
from vjax.layers.paging import Cache, EntryPool, KVPool, PagedStep
from vjax.layers.rope import rotate
from vjax.quant import matmul

TILE = 32  # query tokens handled together
BLOCK = 256  # keys scored together
EPS = 1e-6  # of the LayerNorm of the indexer's keys, in every published model
SELECTED = "selected"  # what a layer leaves in the context for those that share its choice


@dataclass(frozen=True)
class IndexerSpec:
    """How one layer chooses keys. `pool_layer`: its place in the pool of the kind "index"; None: it takes the choice of
    the layer before."""

    topk: int
    rope: int
    pool_layer: int | None


def sparse_latent_attention(
    w: dict[str, Any], x: jax.Array, ctx: Context, cache: Cache | None, spec: AttentionSpec, indexer: IndexerSpec
) -> tuple[jax.Array, Cache | None]:
    """Multi-head latent attention on `x[T, d]` (see `mla`) over the chosen tokens. `w["indexer"]`: `q[I, D, Q]`,
    `k[D, d]`, `k_norm` and `weights[I, d]`."""
    query, key, source = absorb(w, x, ctx, spec)
    rank = w["v_b"].shape[2]
    if indexer.pool_layer is not None:
        ctx.shared[SELECTED], cache = _choose(w["indexer"], x, source, ctx, cache, indexer)
    selected = ctx.shared[SELECTED]
    if cache is None or ctx.step is None:
        where = ctx.positions
        weights = attention_weights(query[:, None], key[:, None], where, where, spec, selected=selected)[0]
        ctx.tap("attention", weights)  # [H, T, T]
        out = jnp.einsum("hts,sr->thr", weights.astype(x.dtype), key[:, :rank], precision=lax.Precision.HIGHEST)
        return expand(w, out), cache
    pool = cache[spec.pool].write(spec.pool_layer, ctx.step.write_index[0], key)
    out = _attend_selected(query, selected, pool, ctx.step, spec, rank)
    return expand(w, out), {**cache, spec.pool: pool}


def _choose(
    w: dict[str, Any], x: jax.Array, source: jax.Array, ctx: Context, cache: Cache | None, spec: IndexerSpec
) -> tuple[jax.Array, Cache | None]:
    """The positions of the chosen keys `[T, topk]`, -1 where there are fewer; without a cache, a mask `[T, T]`."""
    q = rotate(matmul(source, w["q"]), ctx.ropes[spec.rope])  # [T, I, D]
    key = rotate(norm(matmul(x, w["k"]), w["k_norm"], EPS), ctx.ropes[spec.rope])  # [T, D]
    heads, width = q.shape[1:]
    weights = matmul(x, w["weights"]).astype(jnp.float32) * (heads * width) ** -0.5  # [T, I]
    if cache is None or ctx.step is None:
        seen = ctx.positions[:, None] >= ctx.positions[None, :]
        best = lax.top_k(jnp.where(seen, index_scores(q, key, weights), -jnp.inf), min(spec.topk, len(x)))[1]
        return jnp.zeros(seen.shape, bool).at[jnp.arange(len(x))[:, None], best].set(True), cache
    assert spec.pool_layer is not None
    pool = cache["index"].write(spec.pool_layer, ctx.step.write_index[0], key)
    chosen = _choose_paged(q, weights, pool, ctx.step, ctx.positions, spec)
    return chosen, {**cache, "index": pool}


def index_scores(q: jax.Array, keys: jax.Array, weights: jax.Array) -> jax.Array:
    """`q[T, I, D]`, `keys[C, D]` or each token's own `[T, C, D]`, `weights[T, I]` -> `[T, C]` float32."""
    rule = "tid,cd->tic" if keys.ndim == 2 else "tid,tcd->tic"
    each = jnp.einsum(rule, q, keys, precision=lax.Precision.HIGHEST).astype(jnp.float32)
    return jnp.einsum("tic,ti->tc", jax.nn.relu(each), weights, precision=lax.Precision.HIGHEST)


def _choose_paged(
    q: jax.Array, weights: jax.Array, pool: KVPool, step: PagedStep, positions: jax.Array, spec: IndexerSpec
) -> jax.Array:
    """Positions `[T, topk]` of each token's best keys. Keys are scored in blocks, as many as the longest row needs."""
    size, table_width = pool.page_size, step.page_table[0].shape[1]
    capacity, width = table_width * size, max(min(BLOCK // size, table_width), 1)  # pages of a block
    topk = min(spec.topk, capacity)

    def tile(token: jax.Array) -> jax.Array:
        table = page_tables(step, pool, spec.pool_layer or 0, token)
        table = jnp.pad(table, ((0, 0), (0, -table.shape[1] % width)))
        where, queries, each = positions[token], q[token], weights[token]

        def block(i: jax.Array, scores: jax.Array) -> jax.Array:
            pages = lax.dynamic_slice_in_dim(table, i * width, width, axis=1)
            keys = pool.k.at[pages].get(mode="clip").reshape(TILE, -1, q.shape[-1]).astype(q.dtype)
            position = i * width * size + jnp.arange(width * size)
            new = jnp.where(position <= where[:, None], index_scores(queries, keys, each), -jnp.inf)
            return lax.dynamic_update_slice_in_dim(scores, new, i * width * size, axis=1)

        blocks = jnp.max(where) // (width * size) + 1
        scores = lax.fori_loop(0, blocks, block, jnp.full((TILE, table.shape[1] * size), -jnp.inf))
        best, chosen = lax.top_k(scores, topk)
        return jnp.where(best == -jnp.inf, -1, chosen.astype(jnp.int32))

    return in_tiles(tile, step, jnp.zeros((q.shape[0], topk), jnp.int32))


def _attend_selected(
    q: jax.Array, selected: jax.Array, pool: KVPool, step: PagedStep, spec: AttentionSpec, rank: int
) -> jax.Array:
    """`q[T, H, R + P]` over the keys at positions `selected[T, topk]` of each token's row -> `[T, H, R]`."""
    size, latents = pool.page_size, pool.k.reshape(-1, pool.k.shape[-1])

    def tile(token: jax.Array) -> jax.Array:
        position = jnp.maximum(selected[token], 0)  # [TILE, topk]
        page = jnp.take_along_axis(page_tables(step, pool, spec.pool_layer, token), position // size, axis=1)
        keys = latents.at[page * size + position % size].get(mode="clip").astype(q.dtype)  # [TILE, topk, R + P]
        scores = jnp.einsum("thd,tkd->thk", q[token], keys, precision=lax.Precision.HIGHEST).astype(jnp.float32)
        scores = jnp.where(selected[token][:, None] >= 0, scores * spec.scale, -1e30)
        weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
        return jnp.einsum("thk,tkr->thr", weights, keys[..., :rank], precision=lax.Precision.HIGHEST)

    return in_tiles(tile, step, jnp.zeros((*q.shape[:2], rank), q.dtype))


def page_tables(step: PagedStep, pool: KVPool | EntryPool, layer: int, token: jax.Array) -> jax.Array:
    """The page table of each token's row, counted in the whole pool."""
    row = token if step.decode else step.row_of_token[token]
    return step.page_table[0][row] + layer * pool.pages


def in_tiles(tile: Callable[[jax.Array], jax.Array], step: PagedStep, out: jax.Array) -> jax.Array:
    """`tile(token indices [TILE])` for all tokens of the step that belong to a row, written into `out[T, ...]`."""
    tokens = out.shape[0]

    def body(i: jax.Array, out: jax.Array) -> jax.Array:
        token = i * TILE + jnp.arange(TILE)
        return out.at[token].set(tile(jnp.minimum(token, tokens - 1)), mode="drop")

    return lax.fori_loop(0, (step.query_start[-1] + TILE - 1) // TILE, body, out)
