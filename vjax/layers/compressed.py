"""Compressed attention (DeepSeek-V4, 2026): besides a window of tokens, each query sees entries that stand for `rate`
tokens each, all of them or those that an indexer chooses.

An entry is the sum of its tokens' values, weighted in each channel by a softmax over the window, normed and rotated.
While a window is open, its softmax runs on as three numbers a channel (the largest score, the sum of weights, the
weighted sum of values): these are a request's state. A finished entry belongs to the token that finished it and lies in
that token's page, in a pool whose pages hold an entry for every `rate` tokens.

T tokens, H heads of D channels, Q the queries' latent, R channels rotated (the last), E entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vjax.layers.attention import MASKED, AttentionSpec, attention_weights
from vjax.layers.context import Context
from vjax.layers.norms import norm, unit_norm
from vjax.layers.paging import Cache, EntryPool, KVPool, PagedStep
from vjax.layers.recurrent import Arrays, State, read_state, write_state
from vjax.layers.rope import Rope, RopeTables, rotate_last
from vjax.layers.sparse import TILE, in_tiles, index_scores, page_tables
from vjax.quant import matmul, matmul_each

BLOCK = 256  # entries scored together
PAST = jnp.iinfo(jnp.int32).max  # of every pool


@dataclass(frozen=True)
class CompressSpec:
    """How one layer compresses. `topk`: that many entries are chosen for each query, and each entry takes in the window
    before its own, by channels of their own; None: all are seen. `layer`: its place in the pool, `state_layer` in the
    state."""

    rate: int
    rope: Rope
    topk: int | None
    pool: str
    layer: int
    state_layer: int
    state: Arrays


class Sums(NamedTuple):
    """A running softmax: the largest score, the sum of weights against it, and of weighted values, `[..., C]` each."""

    largest: jax.Array
    weight: jax.Array
    value: jax.Array


def compressed_attention(
    w: dict[str, Any], x: jax.Array, ctx: Context, cache: Cache | None, spec: AttentionSpec,
    compress: CompressSpec | None,
) -> tuple[jax.Array, Cache | None]:  # fmt: skip
    """On `x[T, d]`. `w`: `q_a[Q, d]`, `q_norm[Q]`, `q_b[H, D, Q]`, `kv[D, d]`, `kv_norm[D]`, `sinks[H]`, the output in
    groups of heads `o_a[G, r, H / G * D]` and `o_b[d, G * r]`; `compressor` and perhaps `indexer`."""
    tables = ctx.ropes[spec.rope or 0]
    source = norm(matmul(x, w["q_a"]), w["q_norm"], spec.norm_eps)
    q = rotate_last(unit_norm(matmul(source, w["q_b"]), spec.norm_eps), tables)  # [T, H, D]
    key = rotate_last(norm(matmul(x, w["kv"]), w["kv_norm"], spec.norm_eps), tables)
    entries, chosen = None, None
    if compress is not None:
        state, written = read_state(ctx, cache, compress.state_layer, compress.state), {}
        entries, cache, written["open"], written["closed"] = _entries(
            w["compressor"], x, ctx, cache, spec, compress, state, ""
        )
        if compress.topk is not None:
            keys, cache, written["index_open"], written["index_closed"] = _entries(
                w["indexer"], x, ctx, cache, spec, compress, state, "index_"
            )
            chosen = _choose(w["indexer"], x, source, keys, ctx, cache, compress)
        cache = write_state(ctx, cache, compress.state_layer, {**state, **written})
    if cache is None or ctx.step is None:
        out = _attend_whole(q, key, entries, chosen, w["sinks"], ctx, spec, compress)
    else:
        pool = cache[spec.pool].write(spec.pool_layer, ctx.step.write_index[0], key)
        cache = {**cache, spec.pool: pool}
        out = _attend_paged(q, chosen, w["sinks"], cache, ctx.step, ctx.positions, spec, compress)
    # Values are the keys, rotated: turned back at the query's position, only distances are left in them.
    out = rotate_last(out, RopeTables(tables.cos, -tables.sin, tables.interleaved))
    groups = w["o_a"].shape[0]
    low = matmul_each(out.reshape(x.shape[0], groups, -1), w["o_a"])  # [T, G, r]
    return matmul(low.reshape(x.shape[0], -1), w["o_b"]), cache


def _entries(
    w: dict[str, Any], x: jax.Array, ctx: Context, cache: Cache | None, spec: AttentionSpec, compress: CompressSpec,
    state: State, kind: str,
) -> tuple[jax.Array, Cache | None, jax.Array, jax.Array]:  # fmt: skip
    """The entry `[T, D]` that each token finishes, if it does; the cache with them; the state of the open window and of
    the one before. `w`: `kv_gate[2, C, d]`, `bias[rate, C]` of the scores, `norm[D]`."""
    rate, positions = compress.rate, ctx.positions
    both = matmul(x, w["kv_gate"]).astype(jnp.float32)  # [T, 2, C]
    scores = both[:, 1] + w["bias"].astype(jnp.float32)[positions % rate]
    each = Sums(scores, jnp.ones_like(scores), both[:, 0])
    opened, closed = (_stored(state[f"{kind}{name}"]) for name in ("open", "closed"))
    opened = Sums(*(part[:, : scores.shape[1]] for part in opened))
    sums = _running(each, opened, ctx.step, positions % rate == 0)
    done = positions % rate == rate - 1
    if compress.topk is not None:
        width = scores.shape[1] // 2
        ahead, own = (Sums(*(part[:, at] for part in sums)) for at in (slice(width), slice(width, None)))
        before = _before(ahead, closed, ctx.step, positions % rate)
        total = _merge(before, own)
        closed = _of_rows(_where(done, ahead, before), ctx.step)
    else:
        total = sums
    made = norm((total.value / total.weight).astype(x.dtype), w["norm"], spec.norm_eps)
    made = rotate_last(made, compress.rope.tables(jnp.maximum(positions - rate + 1, 0)))
    if cache is not None and ctx.step is not None:
        name, tokens, at = f"{kind}{compress.pool}", cache[spec.pool], ctx.step.write_index[0]
        pool: EntryPool = cache[name]
        place = at // tokens.page_size * pool.page_size + at % tokens.page_size // rate
        valid = done & (at < tokens.pages * tokens.page_size)
        cache = {**cache, name: pool.write(compress.layer, jnp.where(valid, place, PAST), made)}
    last = _of_rows(sums, ctx.step)
    spare = state[f"{kind}open"].shape[-1] - scores.shape[1]
    return made, cache, jnp.pad(jnp.stack(last, axis=1), ((0, 0), (0, 0), (0, spare))), jnp.stack(closed, axis=1)


def _stored(state: jax.Array) -> Sums:
    """`[S, 3, C]`; zeros, at the start of a request, are a sum of nothing."""
    largest, weight, value = (state[:, i] for i in range(3))
    return Sums(jnp.where(weight > 0, largest, MASKED), weight, value)


def _merge(a: Sums, b: Sums) -> Sums:
    largest = jnp.maximum(a.largest, b.largest)
    left, right = jnp.exp(a.largest - largest), jnp.exp(b.largest - largest)
    return Sums(largest, a.weight * left + b.weight * right, a.value * left + b.value * right)


def _where(mask: jax.Array, a: Sums, b: Sums) -> Sums:
    return Sums(*(jnp.where(mask[:, None], x, y) for x, y in zip(a, b, strict=True)))


def _running(each: Sums, opened: Sums, step: PagedStep | None, starts: jax.Array) -> Sums:
    """The sums of each token's window up to it; `opened[S]`: of the windows that rows have open. `starts[T]`: the token
    is a window's first."""
    if step is not None and step.decode:
        return _where(starts, each, _merge(opened, each))
    if step is not None:
        first = jnp.arange(len(starts)) == step.query_start[step.row_of_token]
        carried = _merge(Sums(*(part[step.row_of_token] for part in opened)), each)
        each, starts = _where(first & ~starts, carried, each), starts | first

    def add(a: tuple[Sums, jax.Array], b: tuple[Sums, jax.Array]) -> tuple[Sums, jax.Array]:
        return _where(b[1], b[0], _merge(a[0], b[0])), a[1] | b[1]

    return lax.associative_scan(add, (each, starts))[0]


def _before(sums: Sums, closed: Sums, step: PagedStep | None, offset: jax.Array) -> Sums:
    """The sums of the window before each token's, which is at `offset[T]` of its own."""
    if step is not None and step.decode:
        return closed
    at = jnp.arange(len(offset)) - offset - 1  # the last token of that window
    row = jnp.zeros_like(offset) if step is None else step.row_of_token
    start = jnp.zeros(1, jnp.int32) if step is None else step.query_start
    now = Sums(*(part[jnp.maximum(at, 0)] for part in sums))
    return _where(at >= start[row], now, Sums(*(part[row] for part in closed)))


def _of_rows(sums: Sums, step: PagedStep | None) -> Sums:
    """What is left after each row's last token."""
    if step is not None and step.decode:
        return sums
    last = jnp.array([-1]) if step is None else jnp.maximum(step.query_start[1:] - 1, 0)
    return Sums(*(part[last] for part in sums))


def _choose(
    w: dict[str, Any], x: jax.Array, source: jax.Array, keys: jax.Array, ctx: Context, cache: Cache | None,
    compress: CompressSpec,
) -> jax.Array:  # fmt: skip
    """The chosen entries of each token `[T, topk]`, -1 where there are fewer; without a cache, a mask `[T, E]`. `w`:
    `q[I, Di, Q]`, `weights[I, d]`; `keys[T, Di]`: of the entry that each token finishes."""
    assert compress.topk is not None
    q, rate = rotate_last(matmul(source, w["q"]), ctx.ropes[1]), compress.rate
    heads, width = q.shape[1:]
    weights = matmul(x, w["weights"]).astype(jnp.float32) * (heads * width) ** -0.5
    ready = (ctx.positions + 1) // rate  # entries that are finished at each token
    if cache is None or ctx.step is None:
        keys = keys[rate - 1 :: rate]
        count = len(keys)
        scores = jnp.where(jnp.arange(count) < ready[:, None], index_scores(q, keys, weights), -jnp.inf)
        best = lax.top_k(scores, min(compress.topk, count))[1]
        return jnp.zeros(scores.shape, bool).at[jnp.arange(len(x))[:, None], best].set(True)
    step, pool, size = ctx.step, cache[f"index_{compress.pool}"], cache["full"].page_size
    entries = step.page_table[0].shape[1] * size // rate
    topk = min(compress.topk, entries)

    def tile(token: jax.Array) -> jax.Array:
        table = page_tables(step, pool, compress.layer, token)
        queries, each, count = q[token], weights[token], ready[token]

        def block(i: jax.Array, scores: jax.Array) -> jax.Array:
            entry = i * BLOCK + jnp.arange(BLOCK)
            places = _places(entry[None], table, compress, pool, size)
            found = pool.k.at[places].get(mode="clip").astype(q.dtype)
            new = jnp.where(entry < count[:, None], index_scores(queries, found, each), -jnp.inf)
            return lax.dynamic_update_slice_in_dim(scores, new, i * BLOCK, axis=1)

        blocks = -(-jnp.max(count) // BLOCK)
        scores = lax.fori_loop(0, blocks, block, jnp.full((TILE, -(-entries // BLOCK) * BLOCK), -jnp.inf))
        best, chosen = lax.top_k(scores, topk)
        return jnp.where(best == -jnp.inf, -1, chosen.astype(jnp.int32))

    return in_tiles(tile, step, jnp.zeros((len(x), topk), jnp.int32))


def _places(entry: jax.Array, table: jax.Array, compress: CompressSpec, pool: EntryPool, size: int) -> jax.Array:
    """Where entries `[n or 1, E]` of rows with page tables `[n, W]` lie in the pool."""
    end = jnp.maximum(entry, 0) * compress.rate + compress.rate - 1
    page = jnp.take_along_axis(table, jnp.minimum(end // size, table.shape[1] - 1), axis=1)
    return page * pool.page_size + end % size // compress.rate


def _attend_whole(
    q: jax.Array, key: jax.Array, entries: jax.Array | None, chosen: jax.Array | None, sinks: jax.Array, ctx: Context,
    spec: AttentionSpec, compress: CompressSpec | None,
) -> jax.Array:  # fmt: skip
    where = ctx.positions
    distance = where[:, None] - where[None, :]
    seen = (distance >= 0) & (distance < (spec.window or len(where)))
    if compress is not None and entries is not None:
        entries = entries[compress.rate - 1 :: compress.rate]
        ready = jnp.arange(len(entries)) < (where[:, None] + 1) // compress.rate
        seen = jnp.concatenate([seen, ready if chosen is None else ready & chosen], axis=1)
        key = jnp.concatenate([key, entries])
    free = AttentionSpec(spec.scale, causal=False)
    weights = attention_weights(
        q[:, None], key[:, None], where, jnp.zeros(len(key), jnp.int32), free, selected=seen, sinks=sinks[None]
    )[0]
    ctx.tap("attention", weights[:, :, : len(where)])
    return jnp.einsum("hts,sd->thd", weights.astype(q.dtype), key, precision=lax.Precision.HIGHEST)


def _attend_paged(
    q: jax.Array, chosen: jax.Array | None, sinks: jax.Array, cache: Cache, step: PagedStep, positions: jax.Array,
    spec: AttentionSpec, compress: CompressSpec | None,
) -> jax.Array:  # fmt: skip
    """Over the window, and over the chosen entries or all."""
    pool: KVPool = cache[spec.pool]
    size, width = pool.page_size, pool.k.shape[-1]
    capacity = step.page_table[0].shape[1] * size
    window, tokens = min(spec.window or capacity, capacity), pool.k.reshape(-1, width)
    sink = sinks.astype(jnp.float32)[None, :, None]

    def tile(token: jax.Array) -> jax.Array:
        at = positions[token][:, None]
        near = at - jnp.arange(window)
        page = jnp.take_along_axis(
            page_tables(step, pool, spec.pool_layer, token), jnp.maximum(near, 0) // size, axis=1
        )
        keys, seen = tokens.at[page * size + near % size].get(mode="clip"), near >= 0
        if compress is not None:
            held: EntryPool = cache[compress.pool]
            table = page_tables(step, held, compress.layer, token)
            entry = jnp.arange(capacity // compress.rate)[None] if chosen is None else chosen[token]
            places = _places(entry, table, compress, held, size)
            keys = jnp.concatenate([keys, held.k.at[places].get(mode="clip")], axis=1)
            seen = jnp.concatenate([seen, (entry >= 0) & (entry < (at + 1) // compress.rate)], axis=1)
        keys = keys.astype(q.dtype)
        scores = jnp.einsum("thd,tkd->thk", q[token], keys, precision=lax.Precision.HIGHEST).astype(jnp.float32)
        scores = jnp.where(seen[:, None], scores * spec.scale, MASKED)
        scores = jnp.concatenate([scores, jnp.broadcast_to(sink, (*scores.shape[:2], 1))], axis=-1)
        weights = jax.nn.softmax(scores, axis=-1)[..., :-1].astype(q.dtype)
        return jnp.einsum("thk,tkd->thd", weights, keys, precision=lax.Precision.HIGHEST)

    return in_tiles(tile, step, jnp.zeros_like(q))
