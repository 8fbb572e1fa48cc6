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
