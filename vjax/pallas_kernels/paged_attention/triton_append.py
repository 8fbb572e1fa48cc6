"""Paged attention of one query token a row, as one Triton kernel, with all that precedes it in a decode step: norms of
queries and keys, rope, and the cache's new entry.

A row's keys are cut into chunks; a program attends over one chunk for the G query heads of one key/value head and
leaves a partial softmax; whichever program of a row comes last joins them, always in the same order. The chunk length
follows from the step's real lengths, so that one long row fills the GPU and 256 short ones are not cut up. Importing
this file imports Triton.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from vjax.pallas_kernels.paged_attention.preparation import Preparation
from vjax.pallas_kernels.paged_attention.triton_decode import Config, config_for, plan_units
from vjax.pallas_kernels.paged_attention.triton_parts import LOG2_E, MASKED, capped, heads, page_offsets, sinks_or
from vjax.pallas_kernels.triton_call import call

JOINED = 8192  # values that the joining program reads at once


def append_and_attend(
    qkv: jax.Array, k_pool: jax.Array, v_pool: jax.Array, page_table: jax.Array, kv_len: jax.Array,
    preparation: Preparation, *, scale: float, first_page: int = 0, window: int | None = None,
    softcap: float | None = None, sinks: jax.Array | None = None, config: Config | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """`qkv[S, K, G + 2, D]`, each key/value head's queries, key and value: norms, rope, the key and value into the
    pools at position `kv_len - 1`, attention -> `[S, K, G, D]` and the pools, changed in place."""
    rows, kv_heads, slots, dim = qkv.shape
    groups, do = slots - 2, preparation
    config = config or config_for(dim, jnp.promote_types(qkv.dtype, k_pool.dtype))
    units, first_unit = plan_units(kv_len, page_table.shape[1] * k_pool.shape[1], kv_heads, window, config, least=1)
    # Zeros, of which the program that joins leaves zeros: nothing has to clear them between layers. XLA cannot know,
    # and so computes them anew every step.
    arrivals = jnp.repeat(jnp.minimum(kv_len, 0), kv_heads)
    partial = (units.shape[0], kv_heads, groups)
    channels = triton.next_power_of_2(groups * dim)
    tables = (arrivals if part is None else part for part in (do.cos, do.sin, do.q_norm, do.k_norm))  # or not read
    args = (qkv, *tables, page_table, kv_len, units, first_unit, arrivals, sinks_or(sinks, arrivals), first_page)
    k_pool, v_pool, out, *_ = call(
        _attend, (kv_heads, units.shape[0]), args,
        [((rows, kv_heads, groups, dim), qkv.dtype), ((*partial, dim), jnp.float32), (partial, jnp.float32),
         (partial, jnp.float32)],
        config.warps, config.stages, in_place=(k_pool, v_pool), KV_HEADS=kv_heads, GROUPS=groups, DIM=dim,
        BLOCK_D=max(16, triton.next_power_of_2(dim)), SCALE=scale, SOFTCAP=softcap or 0.0,
        TABLE_WIDTH=page_table.shape[1], PAGE=k_pool.shape[1], BLOCK_G=max(16, triton.next_power_of_2(groups)),
        BLOCK=config.block, SINKS=sinks is not None, INTERLEAVED=do.interleaved,
        ROTARY=0 if do.cos is None else 2 * do.cos.shape[1], NORM=do.q_norm is not None, EPS=do.eps, OFFSET=do.offset,
        BLOCK_JOIN=channels, UNITS=max(1, JOINED // channels),
    )  # fmt: skip
    return out, k_pool, v_pool


@triton.jit
def _attend(
    k_pool, v_pool, qkv, cos, sin, q_norm, k_norm, table, kv_len, units, first_unit, arrivals, sinks, first_page, out,
    values, peaks, totals,
    KV_HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr, TABLE_WIDTH: tl.constexpr, PAGE: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK: tl.constexpr,
    SINKS: tl.constexpr, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr,
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
        at = (row * KV_HEADS + head) * (GROUPS + 2)
        # All that the program reads beside the pools is under way before it waits for any of it.
        length = tl.load(kv_len + row)
        begin = tl.load(first_unit + row)
        count = tl.load(first_unit + row + 1) - begin
        stored = tl.minimum(end, length - 1)  # the newest key is not in the pool yet
        one = tl.arange(0, 1)
        new_v = tl.load(qkv + (at + GROUPS + 1) * DIM + d, mask=d < DIM, other=0.0)[None, :]
        new_k = heads(
            qkv, (at + GROUPS + one) * DIM, one < 1, row, k_norm, cos, sin, DIM, BLOCK_D, ROTARY, INTERLEAVED, NORM,
            EPS, OFFSET,
        )  # fmt: skip
        queries = heads(
            qkv, (at + g) * DIM, g < GROUPS, row, q_norm, cos, sin, DIM, BLOCK_D, ROTARY, INTERLEAVED, NORM, EPS, OFFSET
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
