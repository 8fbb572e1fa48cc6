"""One row times a weight. Importing this file imports Triton.

A program reads whole rows of the weight and nothing is summed across programs, so that a product is always the same.
Many short programs keep more reads under way than few long ones: a program for a row of 2048 channels or more.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import NamedTuple

import jax
import triton
import triton.language as tl

from vjax.pallas_kernels.triton_call import call


class Tile(NamedTuple):
    """Rows of the weight that a program takes, channels it reads at a time, its warps."""

    out: int
    channels: int
    warps: int


def matmul(x: jax.Array, w: jax.Array, tile: Tile | None = None) -> jax.Array:
    """`x[1, in] @ w[out, in].T -> [1, out]`."""
    return _launch(x, w, w.shape[0], False, tile)


def swiglu(x: jax.Array, w: jax.Array, tile: Tile | None = None) -> jax.Array:
    """`silu(x[1, in] @ w[0].T) * (x @ w[1].T) -> [1, F]` for `w[2, F, in]`."""
    return _launch(x, w, w.shape[1], True, tile)


def choose(channels: int) -> Tile:
    """Within 3 % of the best of nine tiles on an H200, for each of Llama-8B's weights (2026-12-03)."""
    block = min(triton.next_power_of_2(channels), 2048)
    return Tile(2048 // block, block, 4)


def _launch(x: jax.Array, w: jax.Array, out: int, gated: bool, tile: Tile | None) -> jax.Array:
    channels = x.shape[-1]
    tile = tile or choose(channels)
    (product,) = call(
        _product, (triton.cdiv(out, tile.out),), (x, w), [((1, out), x.dtype)], tile.warps, 1,
        OUT=out, IN=channels, BLOCK_OUT=tile.out, BLOCK_IN=tile.channels, GATED=gated,
    )  # fmt: skip
    return product


@triton.jit
def _product(
    x, w, product, OUT: tl.constexpr, IN: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
    GATED: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(OUT / BLOCK_OUT),)."""
    n = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    row = tl.minimum(n, OUT - 1).to(tl.int64)[:, None] * IN  # rows past the end read the last one, and store nothing
    total = tl.zeros((BLOCK_OUT, BLOCK_IN), tl.float32)
    total_up = tl.zeros((BLOCK_OUT, BLOCK_IN), tl.float32)
    for start in range(0, IN, BLOCK_IN):
        d = start + tl.arange(0, BLOCK_IN)
        here = d < IN
        part = tl.load(w + row + d[None, :], mask=here[None, :], other=0.0).to(tl.float32)
        if GATED:
            up = tl.load(w + OUT * IN + row + d[None, :], mask=here[None, :], other=0.0).to(tl.float32)
        values = tl.load(x + d, mask=here, other=0.0).to(tl.float32)[None, :]
        total += part * values
        if GATED:
            total_up += up * values
    result = tl.sum(total, 1)
    if GATED:  # of products rounded as they would be if they were stored
        gate = result.to(product.dtype.element_ty).to(tl.float32)
        up_sum = tl.sum(total_up, 1).to(product.dtype.element_ty).to(tl.float32)
        result = gate / (1.0 + tl.exp(-gate)) * up_sum
    tl.store(product + n, result.to(product.dtype.element_ty), mask=n < OUT)
