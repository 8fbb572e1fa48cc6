"""Paged attention over latents, as Triton kernels: all heads see one key a token, whose first channels are also its
value, so that a key is read once for both. Importing this file imports Triton.

A program attends for some heads of one token over a chunk of the keys it sees, and a second kernel joins a token's
chunks. Tokens of a prompt are taken one by one, too: many heads fill a tile, and keys come from the second-level cache.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from vjax.pallas_kernels.paged_attention.triton_decode import JOINED, Config, join, plan_units
from vjax.pallas_kernels.paged_attention.triton_parts import LOG2_E, MASKED, capped, page_offsets, sinks_or
from vjax.pallas_kernels.triton_call import call

SPLIT = 256  # more tokens than this fill the GPU without their keys being cut into chunks


def latent_attention(
    q: jax.Array, pool: jax.Array, page_table: jax.Array, row: jax.Array, kv_len: jax.Array, *, value_dim: int,
    scale: float, first_page: int = 0, window: int | None = None, softcap: float | None = None,
    sinks: jax.Array | None = None, config: Config | None = None,
) -> jax.Array:  # fmt: skip
    """`q[T, H, D]` over the first `kv_len[T]` keys `pool[P, page_size, D]` of row `row[T]` -> `[T, H, value_dim]`.

    Tokens with `kv_len` 0 give zeros. `first_page` is added to the entries of `page_table[S, W]`; `sinks[H]`.
    """
    tokens, heads, dim = q.shape
    wide = jnp.promote_types(q.dtype, pool.dtype).itemsize == 4
    config = config or (Config(block=16, stages=1) if wide else Config(block=32, warps=8, stages=2))
    block_h = min(max(16, triton.next_power_of_2(heads)), 16 if wide else 64)
    groups = triton.cdiv(heads, block_h)
    split = tokens <= SPLIT
    if split:
        units, first_unit = plan_units(kv_len, page_table.shape[1] * pool.shape[1], groups, window, config)
        partial = (units.shape[0], heads)
        outs = [((*partial, value_dim), jnp.float32), (partial, jnp.float32), (partial, jnp.float32)]
    else:
        begin = jnp.zeros_like(kv_len) if window is None else jnp.maximum(kv_len - window, 0)
        units = jnp.stack([jnp.arange(tokens, dtype=jnp.int32), begin, kv_len], axis=1)
        outs = [((tokens, heads, value_dim), q.dtype), ((1,), jnp.float32), ((1,), jnp.float32)]
    block_v, with_sinks = max(16, triton.next_power_of_2(value_dim)), sinks is not None
    given = sinks_or(sinks, units)
    values, peaks, totals = call(
        _attend, (groups, units.shape[0]), (q, pool, page_table, row, units, given, first_page), outs, config.warps,
        config.stages, HEADS=heads, VALUE=value_dim, BLOCK_V=block_v, SINKS=with_sinks, DIM=dim,
        BLOCK_R=max(16, triton.next_power_of_2(dim - value_dim)), BLOCK_H=block_h, SCALE=scale, SOFTCAP=softcap or 0.0,
        TABLE_WIDTH=page_table.shape[1], PAGE=pool.shape[1], BLOCK=config.block, SPLIT=split,
    )  # fmt: skip
    if not split:
        return values
    (out,) = call(
        join, (heads, tokens), (values, peaks, totals, first_unit, given), [((tokens, heads, value_dim), q.dtype)],
        4, 2, HEADS=heads, DIM=value_dim, BLOCK_D=block_v, BLOCK=JOINED, SINKS=with_sinks,
    )  # fmt: skip
    return out


@triton.jit
def _attend(
    q, pool, table, rows, units, sinks, first_page, values, peaks, totals,
    HEADS: tl.constexpr, VALUE: tl.constexpr, BLOCK_V: tl.constexpr, SINKS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_H: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    TABLE_WIDTH: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of heads, U): neighbours read the same keys."""
    unit = tl.program_id(1)
    token = tl.load(units + unit * 3).to(tl.int64)
    first = tl.load(units + unit * 3 + 1)
    end = tl.load(units + unit * 3 + 2)
    if token >= 0:
        h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
        v = tl.arange(0, BLOCK_V)
        r = VALUE + tl.arange(0, BLOCK_R)  # the channels that are no value: those of the rope
        head = h < HEADS
        here = head[:, None] & (v < VALUE)[None, :]
        at = (token * HEADS + h)[:, None] * DIM
        q_v = tl.load(q + at + v[None, :], mask=here, other=0.0)
        q_r = tl.load(q + at + r[None, :], mask=head[:, None] & (r < DIM)[None, :], other=0.0)
        pages = table + tl.load(rows + token).to(tl.int64) * TABLE_WIDTH
        if SINKS and not SPLIT:
            peak = tl.load(sinks + h, mask=head, other=0.0) * LOG2_E
            total = tl.full([BLOCK_H], 1.0, tl.float32)
        else:
            peak = tl.full([BLOCK_H], MASKED, tl.float32)
            total = tl.zeros([BLOCK_H], tl.float32)
        acc = tl.zeros([BLOCK_H, BLOCK_V], tl.float32)
        for start in tl.range(first, end, BLOCK):
            key = start + tl.arange(0, BLOCK)
            seen = key < end
            where = pool + page_offsets(pages, first_page, key, seen, 0, PAGE, 1, DIM)[:, None]
            k_v = tl.load(where + v[None, :], mask=seen[:, None] & (v < VALUE)[None, :], other=0.0).to(q_v.dtype)
            k_r = tl.load(where + r[None, :], mask=seen[:, None] & (r < DIM)[None, :], other=0.0).to(q_v.dtype)
            scores = tl.dot(q_v, tl.trans(k_v), input_precision="ieee")
            scores = tl.dot(q_r, tl.trans(k_r), scores, input_precision="ieee")
            scores = tl.where(seen[None, :], capped(scores, SCALE, SOFTCAP), MASKED)
            new_peak = tl.maximum(peak, tl.max(scores, 1))
            weights = tl.exp2(scores - new_peak[:, None])
            keep = tl.exp2(peak - new_peak)
            total = total * keep + tl.sum(weights, 1)
            acc = tl.dot(weights.to(k_v.dtype), k_v, acc * keep[:, None], input_precision="ieee")
            peak = new_peak
        if SPLIT:
            part = unit.to(tl.int64) * HEADS + h
            tl.store(peaks + part, peak, mask=head)
            tl.store(totals + part, total, mask=head)
        else:
            part = token * HEADS + h
            acc = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(values + part[:, None] * VALUE + v[None, :], acc.to(values.dtype.element_ty), mask=here)
