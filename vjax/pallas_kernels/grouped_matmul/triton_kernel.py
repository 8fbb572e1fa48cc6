"""Products of blocks of rows with the matrix of their group. Importing this file imports Triton.

A program takes one block and some rows of its matrix, which are the first operand: tensor cores want 64 rows there, and
a block of a decode step has 16. It finds its rows by token, so that nobody has to lay them out in memory.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from vjax.pallas_kernels.grouped_matmul.api import Groups
from vjax.pallas_kernels.triton_call import call

PROGRAMS = 264  # two for each multiprocessor of an H200


class Tile(NamedTuple):
    """Rows of the matrix that a program takes, channels it reads at a time, its warps and pipeline stages."""

    out: int
    channels: int
    warps: int
    stages: int


def choose(block: int, blocks: int, out: int, gated: bool, dtype: jnp.dtype) -> Tile:
    """Measured on an H200 with 128 experts of 2048x768, 8 a token: 8 and 64 tokens within 4 % of the best of ten tiles,
    4096 tokens the best of seven (2026-12-03)."""
    if jnp.dtype(dtype).itemsize == 4:
        return Tile(32, 32, 4, 2)
    if block <= 32:
        few = blocks * triton.cdiv(out, 64) < PROGRAMS
        return Tile(32, 128, 4, 4) if few else Tile(64, 128, 4, 5 if gated else 4)
    if block == 64:
        return Tile(64 if gated else 128, 64, 4, 4)
    return Tile(128, 64, 8, 4 if gated else 3)


def grouped_matmul(x: jax.Array, w: jax.Array, groups: Groups, lay_out: bool, tile: Tile | None = None) -> jax.Array:
    """`x[rows, in]`, or `x[T, in]` to be laid out, times `w[groups, out, in].T` -> `[rows, out]`."""
    return _launch(x, w, w.shape[1], groups, lay_out, False, tile)


def grouped_swiglu(x: jax.Array, w: jax.Array, groups: Groups, tile: Tile | None = None) -> jax.Array:
    """`silu(x[T, in] @ w[group, 0].T) * (x @ w[group, 1].T) -> [rows, F]` for `w[groups, 2, F, in]`."""
    return _launch(x, w, w.shape[2], groups, True, True, tile)


def _launch(
    x: jax.Array, w: jax.Array, out: int, groups: Groups, lay_out: bool, gated: bool, tile: Tile | None
) -> jax.Array:
    channels, blocks = x.shape[1], groups.group.shape[0]
    tile = tile or choose(groups.block, blocks, out, gated, x.dtype)
    (product,) = call(
        _product, (triton.cdiv(out, tile.out), blocks), (x, w, groups.token, groups.group),
        [((groups.rows, out), x.dtype)], tile.warps, tile.stages, OUT=out, IN=channels, GROUPS=w.shape[0],
        BLOCK=groups.block, BLOCK_OUT=tile.out, BLOCK_IN=tile.channels, EVEN=channels % tile.channels == 0,
        LAY_OUT=lay_out, GATED=gated,
    )  # fmt: skip
    return product


@triton.jit
def _product(
    x, w, token, group, product, OUT: tl.constexpr, IN: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr, EVEN: tl.constexpr, LAY_OUT: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(OUT / BLOCK_OUT), blocks): neighbours read the same rows."""
    block = tl.program_id(1)
    index = tl.load(group + block)
    if index < GROUPS:
        row = block * BLOCK + tl.arange(0, BLOCK)
        source = tl.load(token + row) if LAY_OUT else row
        n = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        MATRIX: tl.constexpr = OUT * IN
        matrix = w + index.to(tl.int64) * (2 * MATRIX if GATED else MATRIX)
        # Rows past the end read the last one, and store nothing.
        weights = matrix + tl.minimum(n, OUT - 1)[:, None] * IN
        inputs = x + source.to(tl.int64)[:, None] * IN
        total = tl.zeros([BLOCK_OUT, BLOCK], tl.float32)
        total_up = tl.zeros([BLOCK_OUT, BLOCK], tl.float32)
        for start in tl.range(0, IN, BLOCK_IN):
            d = (start + tl.arange(0, BLOCK_IN))[None, :]
            if EVEN:
                values = tl.load(inputs + d)
                part = tl.load(weights + d)
            else:
                values = tl.load(inputs + d, mask=d < IN, other=0.0)
                part = tl.load(weights + d, mask=d < IN, other=0.0)
            values = tl.trans(values)
            total = tl.dot(part.to(values.dtype), values, total, input_precision="ieee")
            if GATED:
                if EVEN:
                    up = tl.load(weights + MATRIX + d)
                else:
                    up = tl.load(weights + MATRIX + d, mask=d < IN, other=0.0)
                total_up = tl.dot(up.to(values.dtype), values, total_up, input_precision="ieee")
        if GATED:  # of products rounded as they would be if they were stored
            gate = total.to(product.dtype.element_ty).to(tl.float32)
            total = gate / (1.0 + tl.exp(-gate)) * total_up.to(product.dtype.element_ty).to(tl.float32)
        result = tl.trans(total.to(product.dtype.element_ty))
        tl.store(product + row.to(tl.int64)[:, None] * OUT + n[None, :], result, mask=(n < OUT)[None, :])
