"""Paged attention of one query token a row, as Triton kernels.

A row's keys are cut into chunks; a program attends over one chunk for the G query heads of one key/value head and
leaves a partial softmax; a second kernel joins a row's chunks. The chunk length follows from the step's real lengths,
so that one long row fills the GPU and 256 short ones are not cut up. Importing this file imports Triton.
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

PROGRAMS = 528  # attending programs to aim for: 132 multiprocessors (H100, H200), two at a time, two rounds
JOINED = 16  # chunks that the joining kernel reads at once


@dataclass(frozen=True)
class Config:
    """Sizes of the attending kernel: keys a step, its warps, its pipeline stages, and the shortest chunk in keys."""

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


def decode_attention(
    q: jax.Array, k_pool: jax.Array, v_pool: jax.Array, page_table: jax.Array, kv_len: jax.Array, *, scale: float,
    first_page: int = 0, window: int | None = None, softcap: float | None = None, sinks: jax.Array | None = None,
    config: Config | None = None,
) -> jax.Array:  # fmt: skip
    """As `reference.decode_attention`, with `first_page` added to the table's entries; `scale` must be positive.

    q `[S, K, G, D]` -> `[S, K, G, D]`; rows with `kv_len` 0 give zeros.
    """
    rows, kv_heads, groups, dim = q.shape
    config = config or config_for(dim, jnp.promote_types(q.dtype, k_pool.dtype))
    units, first_unit = plan_units(kv_len, page_table.shape[1] * k_pool.shape[1], kv_heads, window, config)
    heads = dict(KV_HEADS=kv_heads, GROUPS=groups, DIM=dim, BLOCK_D=max(16, triton.next_power_of_2(dim)))
    partial = (units.shape[0], kv_heads, groups)
    values, peak, total = call(
        _attend, (kv_heads, units.shape[0]), (q, k_pool, v_pool, page_table, units, first_page),
        [((*partial, dim), jnp.float32), (partial, jnp.float32), (partial, jnp.float32)],
        config.warps, config.stages, **heads, SCALE=scale, SOFTCAP=softcap or 0.0, TABLE_WIDTH=page_table.shape[1],
        PAGE=k_pool.shape[1], BLOCK_G=max(16, triton.next_power_of_2(groups)), BLOCK=config.block,
    )  # fmt: skip
    return call(
        join, (kv_heads * groups, rows), (values, peak, total, first_unit, sinks_or(sinks, total)),
        [(q.shape, q.dtype)], 4, 2, HEADS=kv_heads * groups, DIM=dim, BLOCK_D=heads["BLOCK_D"], BLOCK=JOINED,
        SINKS=sinks is not None,
    )[0]  # fmt: skip


def plan_units(
    kv_len: jax.Array, most_keys: int, kv_heads: int, window: int | None, config: Config, *, least: int = 0
) -> tuple[jax.Array, jax.Array]:
    """The chunks of all rows: units `[U, 3]` int32 (row, first key, end), and where each row's begin, `[S + 1]`.

    Rows have `least` units or more, of which those without keys are empty; the row of unused units is -1. The same for
    every layer of a kind, so XLA computes it once a step.
    """
    rows = kv_len.shape[0]
    wanted = -(-config.programs // kv_heads)
    count = min(rows + wanted, rows * max(-(-most_keys // config.shortest), least))
    begin = jnp.zeros_like(kv_len) if window is None else jnp.maximum(kv_len - window, 0)
    length = kv_len - begin
    # Rounding up costs each row at most one unit, so `rows + wanted` always suffice.
    chunk = jnp.maximum(-(-jnp.sum(length) // wanted), config.shortest)
    chunk = -(-chunk // config.block) * config.block
    each = jnp.maximum(-(-length // chunk), least)
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
    q, k_pool, v_pool, table, units, first_page, values, peak_out, total_out,
    KV_HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr, TABLE_WIDTH: tl.constexpr, PAGE: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (K, U): neighbours read the same tokens' other heads, which lie side by side in memory."""
    head = tl.program_id(0)
    unit = tl.program_id(1)
    row = tl.load(units + unit * 3).to(tl.int64)
    first = tl.load(units + unit * 3 + 1)
    end = tl.load(units + unit * 3 + 2)
    if end > first:
        g = tl.arange(0, BLOCK_G)
        d = tl.arange(0, BLOCK_D)
        here = (g < GROUPS)[:, None] & (d < DIM)[None, :]
        queries = tl.load(q + ((row * KV_HEADS + head) * GROUPS + g[:, None]) * DIM + d[None, :], mask=here, other=0.0)
        peak = tl.full([BLOCK_G], MASKED, tl.float32)
        total = tl.zeros([BLOCK_G], tl.float32)
        acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        pages = table + row * TABLE_WIDTH
        for start in tl.range(first, end, BLOCK):
            key = start + tl.arange(0, BLOCK)
            seen = key < end
            at = page_offsets(pages, first_page, key, seen, head, PAGE, KV_HEADS, DIM)[:, None] + d[None, :]
            k = tl.load(k_pool + at, mask=seen[:, None] & (d < DIM)[None, :], other=0.0).to(queries.dtype)
            scores = tl.dot(queries, tl.trans(k), input_precision="ieee")
            scores = tl.where(seen[None, :], capped(scores, SCALE, SOFTCAP), MASKED)
            new_peak = tl.maximum(peak, tl.max(scores, 1))
            weights = tl.exp2(scores - new_peak[:, None])
            keep = tl.exp2(peak - new_peak)
            total = total * keep + tl.sum(weights, 1)
            v = tl.load(v_pool + at, mask=seen[:, None] & (d < DIM)[None, :], other=0.0).to(queries.dtype)
            acc = tl.dot(weights.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
            peak = new_peak
        out = (unit.to(tl.int64) * KV_HEADS + head) * GROUPS + g
        tl.store(peak_out + out, peak, mask=g < GROUPS)
        tl.store(total_out + out, total, mask=g < GROUPS)
        tl.store(values + out[:, None] * DIM + d[None, :], acc, mask=here)


@triton.jit
def join(
    values, peak_in, total_in, first_unit, sinks, out,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Grid (K * G, S): one head of one row. An attention sink joins as one more peak and total, without values."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    begin = tl.load(first_unit + row)
    end = tl.load(first_unit + row + 1)
    d = tl.arange(0, BLOCK_D)
    if SINKS:
        peak = tl.load(sinks + head + tl.zeros([1], tl.int32)) * LOG2_E
        total = tl.full([1], 1.0, tl.float32)
    else:
        peak = tl.full([1], MASKED, tl.float32)
        total = tl.zeros([1], tl.float32)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for start in tl.range(begin, end, BLOCK):
        unit = start + tl.arange(0, BLOCK)
        used = unit < end
        at = unit.to(tl.int64) * HEADS + head
        peaks = tl.load(peak_in + at, mask=used, other=MASKED)
        totals = tl.load(total_in + at, mask=used, other=0.0)
        part = tl.load(values + at[:, None] * DIM + d[None, :], mask=used[:, None] & (d < DIM)[None, :], other=0.0)
        new_peak = tl.maximum(peak, tl.max(peaks, 0))
        weights = tl.exp2(peaks - new_peak)
        keep = tl.exp2(peak - new_peak)
        total = total * keep + tl.sum(weights * totals, 0)
        acc = acc * keep + tl.sum(weights[:, None] * part, 0)
        peak = new_peak
    result = acc / tl.where(total > 0, total, 1.0)
    tl.store(out + (row.to(tl.int64) * HEADS + head) * DIM + d, result.to(out.dtype.element_ty), mask=d < DIM)
