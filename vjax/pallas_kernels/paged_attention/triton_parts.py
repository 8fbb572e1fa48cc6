"""What the paged attention kernels share. Importing this file imports Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

MASKED = tl.constexpr(-1e30)  # finite: a row with no visible key must give numbers, not NaN
LOG2_E = tl.constexpr(1.4426950408889634)


def sinks_or(sinks: jax.Array | None, other: jax.Array) -> jax.Array:
    """`sinks[K, G]` as a kernel reads them: float32, one a head. Without any, `other`: an array that is not read."""
    return other if sinks is None else sinks.reshape(-1).astype(jnp.float32)


@triton.jit
def page_offsets(
    pages, first_page, key, seen, head, PAGE: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr
):  # fmt: skip
    """Where keys at positions `key` of a row with page ids at `pages` begin in a pool: 64-bit, a pool can be large."""
    page = tl.load(pages + key // PAGE, mask=seen, other=0) + first_page
    return (page.to(tl.int64) * (PAGE * KV_HEADS) + (key % PAGE) * KV_HEADS + head) * DIM


@triton.jit
def capped(scores, SCALE: tl.constexpr, SOFTCAP: tl.constexpr):
    """Scaled, soft-capped scores in powers of two."""
    if SOFTCAP == 0.0:
        scores = scores * (SCALE * LOG2_E)
    else:  # tanh without libdevice; the exponential may overflow, which gives 1
        double = tl.exp2(scores * (2.0 * SCALE / SOFTCAP * LOG2_E))
        scores = (1.0 - 2.0 / (double + 1.0)) * (SOFTCAP * LOG2_E)
    return scores


@triton.jit
def heads(
    x, at, valid, token, norm, cos, sin, DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROTARY: tl.constexpr,
    INTERLEAVED: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """The heads `[N, BLOCK_D]` that begin at `at[N]`, with their RMS norm, and the first `ROTARY` channels turned by
    the token's angles; rounded after each as layers would."""
    d = tl.arange(0, BLOCK_D)
    here = valid[:, None] & (d < DIM)[None, :]
    stored = tl.load(x + at[:, None] + d[None, :], mask=here, other=0.0)
    value = stored.to(tl.float32)
    if NORM:
        scale = 1.0 / tl.sqrt_rn(tl.sum(value * value, 1) / DIM + EPS)
        factor = tl.load(norm + d, mask=d < DIM, other=0.0).to(tl.float32) + OFFSET
        value = (value * scale[:, None] * factor[None, :]).to(stored.dtype).to(tl.float32)
    if ROTARY > 0:
        HALF: tl.constexpr = ROTARY // 2
        turns = d < ROTARY
        if INTERLEAVED:
            first = d % 2 == 0
            partner = tl.where(first, d + 1, d - 1)
            pair = d // 2
        else:
            first = d < HALF
            partner = tl.where(first, d + HALF, d - HALF)
            pair = tl.where(first, d, d - HALF)
        other = tl.load(x + at[:, None] + partner[None, :], mask=here & turns[None, :], other=0.0).to(tl.float32)
        if NORM:
            factor = tl.load(norm + partner, mask=turns, other=0.0).to(tl.float32) + OFFSET
            other = (other * scale[:, None] * factor[None, :]).to(stored.dtype).to(tl.float32)
        c = tl.load(cos + token * HALF + pair, mask=turns, other=1.0)
        s = tl.load(sin + token * HALF + pair, mask=turns, other=0.0)
        value = value * c[None, :] + other * tl.where(first, -s, s)[None, :]
    return value.to(stored.dtype)
