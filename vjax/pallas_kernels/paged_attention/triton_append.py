"""Paged attention of one query token a row, as one Triton kernel, with all that precedes it in a decode step: norms of
queries and keys, rope, and the cache's new entry.

A row's keys are cut into chunks; a program attends over one chunk for the G query heads of one key/value head and
leaves a partial softmax; whichever program of a row comes last joins them, always in the same order. The chunk length
follows from the step's real lengths, so that one long row fills the GPU and 256 short ones are not cut up. Importing
this file imports Triton.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from vjax.pallas_kernels.paged_attention.preparation import Preparation
from vjax.pallas_kernels.paged_attention.triton_parts import LOG2_E, MASKED, capped, heads, page_offsets, sinks_or
from vjax.pallas_kernels.triton_call import call

PROGRAMS = 528  # attending programs to aim for: 132 multiprocessors (H100, H200), two at a time, two rounds
JOINED = 8192  # values that the joining program reads at once


@dataclass(frozen=True)
class Config:
    """Sizes of the kernel: keys a step, warps, pipeline stages, the shortest chunk in keys, and programs to aim for."""

    block: int = 64
    warps: int = 4
    stages: int = 3
    shortest: int = 64
    programs: int = PROGRAMS


def config_for(dim: int, dtype: jnp.dtype) -> Config:
    """Measured on an H200, 64 rows of 2048 keys, bfloat16: 128 wide 3.6 TB/s (seven stages 3.7, but 12% slower for 8
    rows; 128 keys a step 3.6, and 25% slower there), 64 wide 3.6 (64 keys a step 3.1), 256 wide 3.5 (three stages 3.1).
    """
    if jnp.dtype(dtype).itemsize == 4:
        return Config(block=32, stages=2)  # shared memory holds stages * block * (K and V) of the padded width
    if dim <= 64:
        return Config(block=128)
    return Config() if dim <= 128 else Config(block=32, stages=5)


def append_and_attend(
    qkv: jax.Array, k_pool: jax.Array, v_pool: jax.Array, page_table: jax.Array, kv_len: jax.Array,
    preparation: Preparation, *, scale: float, first_page: int = 0, window: int | None = None,
    softcap: float | None = None, sinks: jax.Array | None = None, config: Config | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """`qkv[S, K, G + 2, D]`, each key/value head's queries, key and value: norms, rope, the key and value into the
    pools at position `kv_len - 1`, attention -> `[S, K, G, D]` and the pools, changed in place."""
    options: dict[str, Any] = dict(
        scale=scale, first_page=first_page, window=window, softcap=softcap, sinks=sinks, config=config
    )  # fmt: skip
    return _launch(qkv, k_pool, v_pool, page_table, kv_len, preparation, **options)


def _launch(
    q: jax.Array, k_pool: jax.Array, v_pool: jax.Array, page_table: jax.Array, kv_len: jax.Array,
    given: Preparation | None, *, scale: float, first_page: int, window: int | None, softcap: float | None,
    sinks: jax.Array | None, config: Config | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    rows, kv_heads, slots, dim = q.shape
    append, do = given is not None, given or Preparation()
    groups = slots - 2 if append else slots
    config = config or config_for(dim, jnp.promote_types(q.dtype, k_pool.dtype))
    units, first_unit = plan_units(kv_len, page_table.shape[1] * k_pool.shape[1], kv_heads, window, config)
    # Zeros, of which the program that joins leaves zeros: nothing has to clear them between layers. XLA cannot know,
    # and so computes them anew every step.
    arrivals = jnp.repeat(jnp.minimum(kv_len, 0), kv_heads)
    partial = (units.shape[0], kv_heads, groups)
    channels = triton.next_power_of_2(groups * dim)
    tables = (arrivals if part is None else part for part in (do.cos, do.sin, do.q_norm, do.k_norm))  # or not read
    pools = (k_pool, v_pool)
    args = (q, *tables, page_table, kv_len, units, first_unit, arrivals, sinks_or(sinks, arrivals), first_page)
    found = call(
        _attend, (kv_heads, units.shape[0]), args if append else (*pools, *args),
        [((rows, kv_heads, groups, dim), q.dtype), ((*partial, dim), jnp.float32), (partial, jnp.float32),
         (partial, jnp.float32)],
        config.warps, config.stages, in_place=pools if append else (), KV_HEADS=kv_heads, GROUPS=groups, DIM=dim,
        BLOCK_D=max(16, triton.next_power_of_2(dim)), SCALE=scale, SOFTCAP=softcap or 0.0,
        TABLE_WIDTH=page_table.shape[1], PAGE=k_pool.shape[1], BLOCK_G=max(16, triton.next_power_of_2(groups)),
        BLOCK=config.block, SINKS=sinks is not None, APPEND=append, INTERLEAVED=do.interleaved,
        ROTARY=0 if do.cos is None else 2 * do.cos.shape[1], NORM=do.q_norm is not None, EPS=do.eps, OFFSET=do.offset,
        BLOCK_JOIN=channels, UNITS=max(1, JOINED // channels),
    )  # fmt: skip
    return (found[2], found[0], found[1]) if append else (found[0], *pools)


def plan_units(
    kv_len: jax.Array, most_keys: int, kv_heads: int, window: int | None, config: Config
) -> tuple[jax.Array, jax.Array]:
    """The chunks of all rows: units `[U, 3]` int32 (row, first key, end), and where each row's begin, `[S + 1]`.

    A row without keys has an empty unit, which writes its zeros; the row of unused units is -1. The same for every
    layer of a kind, so XLA computes it once a step.
    """
    rows = kv_len.shape[0]
    wanted = -(-config.programs // kv_heads)
    count = min(rows + wanted, rows * max(-(-most_keys // config.shortest), 1))
    begin = jnp.zeros_like(kv_len) if window is None else jnp.maximum(kv_len - window, 0)
    length = kv_len - begin
    # Rounding up costs each row at most one unit, so `rows + wanted` always suffice.
    chunk = jnp.maximum(-(-jnp.sum(length) // wanted), config.shortest)
    chunk = -(-chunk // config.block) * config.block
    each = jnp.maximum(-(-length // chunk), 1)
    first_unit = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(each, dtype=jnp.int32)])
    unit = jnp.arange(count, dtype=jnp.int32)
    row = jnp.sum(first_unit[1:] <= unit[:, None], axis=1, dtype=jnp.int32)  # a search without a loop
    used = row < rows
    row = jnp.minimum(row, rows - 1)
    first = begin[row] + (unit - first_unit[row]) * chunk
    end = jnp.minimum(first + chunk, kv_len[row])
    return jnp.where(used, jnp.stack([row, first, end]), jnp.array([[-1], [0], [0]], jnp.int32)).T, first_unit


@triton.jit
def _attend(
    k_pool, v_pool, q, cos, sin, q_norm, k_norm, table, kv_len, units, first_unit, arrivals, sinks, first_page, out,
    values, peaks, totals,
    KV_HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr, TABLE_WIDTH: tl.constexpr, PAGE: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK: tl.constexpr,
    SINKS: tl.constexpr, APPEND: tl.constexpr, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr,
    EPS: tl.constexpr, OFFSET: tl.constexpr, BLOCK_JOIN: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Grid (K, U): neighbours read the same tokens' other heads, which lie side by side in memory."""
    head = tl.program_id(0)
    unit = tl.program_id(1)
    row = tl.load(units + unit * 3).to(tl.int64)
    first = tl.load(units + unit * 3 + 1)
    end = tl.load(units + unit * 3 + 2)
    if row >= 0:
        g = tl.arange(0, BLOCK_G)
        d = tl.arange(0, BLOCK_D)
        here = (g < GROUPS)[:, None] & (d < DIM)[None, :]
        SLOTS: tl.constexpr = GROUPS + 2 if APPEND else GROUPS
        at = (row * KV_HEADS + head) * SLOTS
        # All that the program reads beside the pools is under way before it waits for any of it.
        length = tl.load(kv_len + row)
        begin = tl.load(first_unit + row)
        count = tl.load(first_unit + row + 1) - begin
        stored = end
        one = tl.arange(0, 1)
        if APPEND:
            stored = tl.minimum(end, length - 1)  # the newest key is not in the pool yet
            new_v = tl.load(q + (at + GROUPS + 1) * DIM + d, mask=d < DIM, other=0.0)[None, :]
            new_k = heads(
                q, (at + GROUPS + one) * DIM, one < 1, row, k_norm, cos, sin, DIM, BLOCK_D, ROTARY, INTERLEAVED, NORM,
                EPS, OFFSET,
            )  # fmt: skip
        queries = heads(
            q, (at + g) * DIM, g < GROUPS, row, q_norm, cos, sin, DIM, BLOCK_D, ROTARY, INTERLEAVED, NORM, EPS, OFFSET
        )  # fmt: skip
        pages = table + row * TABLE_WIDTH
        peak = tl.full([BLOCK_G], MASKED, tl.float32)
        total = tl.zeros([BLOCK_G], tl.float32)
        acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        for start in tl.range(first, stored, BLOCK):
            key = start + tl.arange(0, BLOCK)
            seen = key < stored
            where = page_offsets(pages, first_page, key, seen, head, PAGE, KV_HEADS, DIM)[:, None] + d[None, :]
            k = tl.load(k_pool + where, mask=seen[:, None] & (d < DIM)[None, :], other=0.0).to(queries.dtype)
            scores = tl.dot(queries, tl.trans(k), input_precision="ieee")
            scores = tl.where(seen[None, :], capped(scores, SCALE, SOFTCAP), MASKED)
            new_peak = tl.maximum(peak, tl.max(scores, 1))
            weights = tl.exp2(scores - new_peak[:, None])
            keep = tl.exp2(peak - new_peak)
            total = total * keep + tl.sum(weights, 1)
            v = tl.load(v_pool + where, mask=seen[:, None] & (d < DIM)[None, :], other=0.0).to(queries.dtype)
            acc = tl.dot(weights.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
            peak = new_peak
        if APPEND:  # noqa: SIM102 - known when the kernel is compiled, unlike what follows
            if (end == length) & (length > 0):
                k = new_k.to(k_pool.dtype.element_ty)  # [1, D], as a later step will read it
                v = new_v.to(v_pool.dtype.element_ty)
                where = page_offsets(pages, first_page, length - 1 + one, one < 1, head, PAGE, KV_HEADS, DIM)
                tl.store(k_pool + where[:, None] + d[None, :], k, mask=(d < DIM)[None, :])
                tl.store(v_pool + where[:, None] + d[None, :], v, mask=(d < DIM)[None, :])
                k = k.to(queries.dtype).to(tl.float32)
                score = capped(tl.sum(queries.to(tl.float32) * k, 1), SCALE, SOFTCAP)
                new_peak = tl.maximum(peak, score)
                weight = tl.exp2(score - new_peak)
                keep = tl.exp2(peak - new_peak)
                total = total * keep + weight
                weight = weight.to(queries.dtype).to(tl.float32)
                acc = acc * keep[:, None] + weight[:, None] * v.to(queries.dtype).to(tl.float32)
                peak = new_peak
        if count == 1:
            if SINKS:
                sink = tl.load(sinks + head * GROUPS + g, mask=g < GROUPS, other=0.0) * LOG2_E
                new_peak = tl.maximum(peak, sink)
                keep = tl.exp2(peak - new_peak)
                total = total * keep + tl.exp2(sink - new_peak)
                acc = acc * keep[:, None]
            result = acc / tl.where(total > 0, total, 1.0)[:, None]
            target = ((row * KV_HEADS + head) * GROUPS + g) * DIM
            tl.store(out + target[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=here)
        else:
            part = (unit.to(tl.int64) * KV_HEADS + head) * GROUPS + g
            tl.store(peaks + part, peak, mask=g < GROUPS)
            tl.store(totals + part, total, mask=g < GROUPS)
            tl.store(values + part[:, None] * DIM + d[None, :], acc, mask=here)
            tl.debug_barrier()  # all of the program's threads have stored before one of them says so
            before = tl.atomic_add(arrivals + row * KV_HEADS + head, 1, sem="acq_rel")
            if before == count - 1:
                tl.debug_barrier()
                tl.store(arrivals + row * KV_HEADS + head, 0)
                _join(
                    values, peaks, totals, sinks, out, row, head, begin, begin + count, KV_HEADS, GROUPS, DIM,
                    BLOCK_JOIN, UNITS, SINKS,
                )  # fmt: skip


@triton.jit
def _join(
    values, peaks, totals, sinks, out, row, head, begin, end, KV_HEADS: tl.constexpr, GROUPS: tl.constexpr,
    DIM: tl.constexpr, BLOCK: tl.constexpr, UNITS: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """The softmax over units `begin .. end` of a row's G heads, whose channels lie side by side. An attention sink
    joins as one more peak and total, without values. Reads past the first-level cache: other programs wrote this."""
    i = tl.arange(0, BLOCK)
    here = i < GROUPS * DIM
    g = i // DIM
    if SINKS:
        peak = tl.load(sinks + head * GROUPS + g, mask=here, other=0.0) * LOG2_E
        total = tl.full([BLOCK], 1.0, tl.float32)
    else:
        peak = tl.full([BLOCK], MASKED, tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(begin, end, UNITS):
        unit = start + tl.arange(0, UNITS)
        used = (unit < end)[:, None] & here[None, :]
        at = (unit.to(tl.int64) * KV_HEADS + head) * GROUPS
        each = at[:, None] + g[None, :]
        each_peak = tl.load(peaks + each, mask=used, other=MASKED, cache_modifier=".cg")
        each_total = tl.load(totals + each, mask=used, other=0.0, cache_modifier=".cg")
        part = tl.load(values + (at * DIM)[:, None] + i[None, :], mask=used, other=0.0, cache_modifier=".cg")
        new_peak = tl.maximum(peak, tl.max(each_peak, 0))
        weights = tl.exp2(each_peak - new_peak[None, :])
        keep = tl.exp2(peak - new_peak)
        total = total * keep + tl.sum(weights * each_total, 0)
        acc = acc * keep + tl.sum(weights * part, 0)
        peak = new_peak
    result = acc / tl.where(total > 0, total, 1.0)
    tl.store(out + (row * KV_HEADS + head) * GROUPS * DIM + i, result.to(out.dtype.element_ty), mask=here)
