"""Paged attention of rows with any number of query tokens, as a Triton kernel. Importing this file imports Triton.

A program takes a tile: some consecutive tokens of one row with all G query heads of one key/value head, so that a key
is read once for the whole group and rows of few tokens fill a tile better. Tokens past the last row make tiles without
keys, whose output is zero.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from vjax.pallas_kernels.paged_attention.triton_parts import LOG2_E, MASKED, capped, page_offsets, sinks_or
from vjax.pallas_kernels.triton_call import call


@dataclass(frozen=True)
class Config:
    """Queries (tokens times G) in a tile, keys a step, warps and pipeline stages."""

    queries: int = 128
    block: int = 128
    warps: int = 8
    stages: int = 3


def config_for(dim: int, dtype: jnp.dtype, queries: int) -> Config:
    """`queries`: of all tokens, times G.

    Measured on an H200, bfloat16, 4096 tokens, 32/8 heads: 128 wide 355 TFLOP/s (64 keys a step 341, half the queries
    328), 64 wide 243; 256 wide with 8/4 heads 366. XLA's cuDNN attention without pages: 479.
    """
    if jnp.dtype(dtype).itemsize == 4:
        return Config(queries=32, block=16, stages=1)  # plain arithmetic: larger tiles spill registers
    if queries <= 64:
        return Config(queries=64, block=64, warps=4, stages=5 if dim <= 128 else 2)
    return Config() if dim <= 128 else Config(block=64, stages=2)


def ragged_attention(
    q: jax.Array, k_pool: jax.Array, v_pool: jax.Array, page_table: jax.Array, kv_len: jax.Array,
    query_start: jax.Array, positions: jax.Array, *, scale: float, first_page: int = 0, window: int | None = None,
    softcap: float | None = None, sinks: jax.Array | None = None, config: Config | None = None,
) -> jax.Array:  # fmt: skip
    """As `reference.ragged_attention`, with `first_page` added to the table's entries; `scale` must be positive."""
    tokens, kv_heads, groups, dim = q.shape
    config = config or config_for(dim, jnp.promote_types(q.dtype, k_pool.dtype), tokens * groups)
    block_q = max(config.queries, triton.next_power_of_2(groups))
    tiles = plan_tiles(query_start, tokens, block_q // groups)
    return call(
        _attend, (kv_heads, tiles.shape[0]),
        (q, k_pool, v_pool, page_table, kv_len, tiles, positions, sinks_or(sinks, positions), first_page),
        [(q.shape, q.dtype)], config.warps, config.stages, KV_HEADS=kv_heads, GROUPS=groups, DIM=dim,
        BLOCK_D=max(16, triton.next_power_of_2(dim)), SCALE=scale, SOFTCAP=softcap or 0.0, WINDOW=window or 0,
        TABLE_WIDTH=page_table.shape[1], PAGE=k_pool.shape[1], TILE=block_q // groups, BLOCK_Q=block_q,
        BLOCK=config.block, ROWS=kv_len.shape[0], SINKS=sinks is not None,
    )[0]  # fmt: skip


def plan_tiles(query_start: jax.Array, tokens: int, tile: int) -> jax.Array:
    """Tiles `[N, 3]` int32 (row, first token, end), long rows' last tiles first; unused ones are empty.

    The same for every layer, so XLA computes it once a step.
    """
    rows = query_start.shape[0] - 1
    begin = query_start
    end = jnp.concatenate([query_start[1:], jnp.full(1, tokens, jnp.int32)])  # one more row: the padding
    tile_end = jnp.cumsum(-(-(end - begin) // tile), dtype=jnp.int32)
    count = -(-tokens // tile) + rows + 1
    # The last tiles of a row have the most keys: started last, they would run alone.
    index = tile_end[-1] - 1 - jnp.arange(count, dtype=jnp.int32)
    row = jnp.sum(tile_end <= index[:, None], axis=1, dtype=jnp.int32)  # a search without a loop
    before = jnp.where(row > 0, tile_end[jnp.maximum(row - 1, 0)], 0)
    first = begin[row] + (index - before) * tile
    used = index >= 0
    return jnp.stack([row, jnp.where(used, first, 0), jnp.where(used, jnp.minimum(first + tile, end[row]), 0)], axis=1)


@triton.jit
def _attend(
    q, k_pool, v_pool, table, kv_len, tiles, positions, sinks, first_page, out,
    KV_HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, TABLE_WIDTH: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Grid (K, N): neighbours read the same tokens' other heads, which lie side by side in memory."""
    head = tl.program_id(0)
    at = tiles + tl.program_id(1) * 3
    row = tl.load(at)
    first_token = tl.load(at + 1)
    end_token = tl.load(at + 2)
    if end_token > first_token:
        lane = tl.arange(0, BLOCK_Q)
        token = first_token + lane // GROUPS
        mine = (token < end_token) & (lane < TILE * GROUPS)
        d = tl.arange(0, BLOCK_D)
        here = mine[:, None] & (d < DIM)[None, :]
        place = ((token.to(tl.int64) * KV_HEADS + head) * GROUPS + lane % GROUPS) * DIM
        queries = tl.load(q + place[:, None] + d[None, :], mask=here, other=0.0)
        position = tl.load(positions + token, mask=mine, other=0)
        newest = tl.max(tl.where(mine, position, 0), 0)
        oldest = tl.min(tl.where(mine, position, newest), 0)
        length = tl.load(kv_len + row, mask=row < ROWS, other=0)  # the padding has no keys
        end = tl.minimum(newest + 1, length)
        pages = table + row.to(tl.int64) * TABLE_WIDTH
        if SINKS:
            peak = tl.load(sinks + head * GROUPS + lane % GROUPS) * LOG2_E
            total = tl.full([BLOCK_Q], 1.0, tl.float32)
        else:
            peak = tl.full([BLOCK_Q], MASKED, tl.float32)
            total = tl.zeros([BLOCK_Q], tl.float32)
        acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
        if WINDOW == 0:  # all queries see these keys: no masks
            begin = tl.minimum(oldest + 1, end) // BLOCK * BLOCK
            acc, total, peak = _blocks(
                queries, k_pool, v_pool, pages, first_page, head, position, 0, begin, end, acc, total, peak, False,
                KV_HEADS, DIM, BLOCK_D, SCALE, SOFTCAP, WINDOW, PAGE, BLOCK,
            )  # fmt: skip
        else:
            begin = tl.maximum(oldest - WINDOW + 1, 0)
        acc, total, peak = _blocks(
            queries, k_pool, v_pool, pages, first_page, head, position, begin, end, end, acc, total, peak, True,
            KV_HEADS, DIM, BLOCK_D, SCALE, SOFTCAP, WINDOW, PAGE, BLOCK,
        )  # fmt: skip
        result = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + place[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=here)


@triton.jit
def _blocks(
    queries, k_pool, v_pool, pages, first_page, head, position, begin, stop, end, acc, total, peak, MASKS: tl.constexpr,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The running softmax over keys `begin .. stop`, of which those from `end` on must not be read."""
    d = tl.arange(0, BLOCK_D)
    for start in tl.range(begin, stop, BLOCK):
        key = start + tl.arange(0, BLOCK)
        exists = key < end
        at = page_offsets(pages, first_page, key, exists, head, PAGE, KV_HEADS, DIM)[:, None] + d[None, :]
        read = (d < DIM)[None, :]
        if MASKS:
            read = read & exists[:, None]
        k = tl.load(k_pool + at, mask=read, other=0.0).to(queries.dtype)
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee")
        if MASKS or SOFTCAP != 0.0:
            scores = capped(scores, SCALE, SOFTCAP)
            if MASKS:
                seen = (key[None, :] <= position[:, None]) & exists[None, :]
                if WINDOW > 0:
                    seen = seen & (key[None, :] > position[:, None] - WINDOW)
                scores = tl.where(seen, scores, MASKED)
            new_peak = tl.maximum(peak, tl.max(scores, 1))
            weights = tl.exp2(scores - new_peak[:, None])
        else:  # scaling and subtracting in one instruction
            new_peak = tl.maximum(peak, tl.max(scores, 1) * (SCALE * LOG2_E))
            weights = tl.exp2(scores * (SCALE * LOG2_E) - new_peak[:, None])
        keep = tl.exp2(peak - new_peak)
        total = total * keep + tl.sum(weights, 1)
        v = tl.load(v_pool + at, mask=read, other=0.0).to(queries.dtype)
        acc = tl.dot(weights.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
        peak = new_peak
    return acc, total, peak
