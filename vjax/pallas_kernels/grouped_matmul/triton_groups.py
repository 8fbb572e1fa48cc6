"""Rows sorted into blocks of one group each, by one kernel: a program for each group looks through all rows. Importing
this file imports Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from vjax.pallas_kernels.triton_call import call

CHUNK = 4096  # rows looked at together


def group_rows(ids: jax.Array, groups: int, block: int, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`place`, `token` and `group` of `api.Groups` for `ids[T, k]`, with `count` blocks."""
    total = ids.size
    chunk = min(triton.next_power_of_2(total), CHUNK)
    found = call(
        _place, (groups,), (ids,), [((total,), jnp.int32), ((count * block,), jnp.int32), ((count,), jnp.int32)],
        8 if chunk > 1024 else 4, 1, TOTAL=total, EACH=total // ids.shape[0], GROUPS=groups,
        BINS=triton.next_power_of_2(groups + 1), BLOCK=block, COUNT=count, CHUNK=chunk,
    )  # fmt: skip
    return found[0], found[1], found[2]


@triton.jit
def _place(
    ids, place, token, group, TOTAL: tl.constexpr, EACH: tl.constexpr, GROUPS: tl.constexpr, BINS: tl.constexpr,
    BLOCK: tl.constexpr, COUNT: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Grid (groups,)."""
    mine = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    counts = tl.zeros([BINS], tl.int32)
    for start in tl.range(0, TOTAL, CHUNK):
        i = start + lane
        counts += tl.histogram(tl.load(ids + i, mask=i < TOTAL, other=GROUPS), BINS)
    bins = tl.arange(0, BINS)
    blocks = tl.where(bins < GROUPS, (counts + BLOCK - 1) // BLOCK, 0)
    first = tl.sum(tl.where(bins < mine, blocks, 0), 0)
    own = tl.sum(tl.where(bins == mine, blocks, 0), 0)
    before = first * BLOCK
    for start in tl.range(0, TOTAL, CHUNK):
        i = start + lane
        is_mine = (tl.load(ids + i, mask=i < TOTAL, other=GROUPS) == mine).to(tl.int32)
        at = before + tl.cumsum(is_mine, 0) - 1
        tl.store(place + i, at, mask=is_mine == 1)
        tl.store(token + at, i // EACH, mask=is_mine == 1)
        before += tl.sum(is_mine, 0)
    spare = before + tl.arange(0, BLOCK)
    tl.store(token + spare, 0, mask=spare < (first + own) * BLOCK)
    for start in tl.range(0, own, 64):
        i = start + tl.arange(0, 64)
        tl.store(group + first + i, mine, mask=i < own)
    if mine == GROUPS - 1:
        for start in tl.range(first + own, COUNT, 64):
            i = start + tl.arange(0, 64)
            tl.store(group + i, GROUPS, mask=i < COUNT)
