"""Blocks of rows times weights in narrow codes, decoded a tile at a time. Importing this file imports Triton.

As in `grouped_matmul`, a program takes a block of rows and some rows of one matrix, which are the first operand, and
finds its rows by token in a mixture. A scale multiplies the products of its group where a step of the loop has one
group, otherwise the codes. Where there are few programs each sums over a part of the channels only.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from vjax.pallas_kernels.grouped_matmul import Groups
from vjax.pallas_kernels.scaled_matmul.reference import FOUR_BITS, Codes, extent
from vjax.pallas_kernels.scaled_matmul.triton_scale import arguments, constants, scale_at
from vjax.pallas_kernels.triton_call import call

PROGRAMS = 264  # two for each multiprocessor of an H200
MAX_BLOCK = 128


class Tile(NamedTuple):
    """Rows of the matrix that a program takes, channels it reads at a time, its warps and pipeline stages, and parts
    that the channels are split into."""

    out: int
    channels: int
    warps: int
    stages: int
    parts: int = 1


def choose(block: int, blocks: int, out: int, channels: int, four_bits: bool) -> Tile:
    """Not measured yet."""
    tile = Tile(64, 256 if four_bits else 128, 4, 4 if block <= 32 else 3)
    programs = blocks * triton.cdiv(out, tile.out)
    parts = 1
    while parts < 8 and programs * parts * 2 <= PROGRAMS * 2 and channels // (parts * 2) >= 4 * tile.channels:
        parts *= 2
    return tile._replace(parts=parts)


def matmul(x: jax.Array, w: Codes, tile: Tile | None = None) -> jax.Array:
    """`x[T, in]` times `w`, of `data[out, in]`, `scale[out, groups]` and so on -> `[T, out]`."""
    rows = x.shape[0]
    block = min(max(16, triton.next_power_of_2(rows)), MAX_BLOCK)
    blocks, out = triton.cdiv(rows, block), w.data.shape[0]
    tile = tile or choose(block, blocks, out, x.shape[1], w.code in FOUR_BITS)
    dtype = x.dtype if tile.parts == 1 else jnp.dtype(jnp.float32)
    none = jnp.zeros(1, jnp.int32)
    shape = dict(ROWS_X=rows, OUT=out, BLOCK=block, GROUPS=0, LAY_OUT=False, GATED=False)
    found = _launch(x, w, (none, none), (tile.parts, rows, out), dtype, blocks, tile, shape)
    return found[0] if tile.parts == 1 else jnp.sum(found, axis=0).astype(x.dtype)


def grouped_matmul(x: jax.Array, w: Codes, groups: Groups, lay_out: bool, tile: Tile | None = None) -> jax.Array:
    """`x[rows, in]`, or `x[T, in]` to be laid out, times `w`, of `data[groups, out, in]` and so on -> `[rows, out]`."""
    return _grouped(x, w, w.data.shape[1], groups, lay_out, False, tile)


def grouped_swiglu(x: jax.Array, w: Codes, groups: Groups, tile: Tile | None = None) -> jax.Array:
    """`silu(x[T, in] @ w[group, 0].T) * (x @ w[group, 1].T) -> [rows, F]` for `w` of `data[groups, 2, F, in]`."""
    return _grouped(x, w, w.data.shape[2], groups, True, True, tile)


def _grouped(
    x: jax.Array, w: Codes, out: int, groups: Groups, lay_out: bool, gated: bool, tile: Tile | None
) -> jax.Array:
    blocks = groups.group.shape[0]
    tile = tile or choose(groups.block, PROGRAMS, out, x.shape[1], w.code in FOUR_BITS)
    shape = dict(
        ROWS_X=groups.rows, OUT=out, BLOCK=groups.block, GROUPS=w.data.shape[0], LAY_OUT=lay_out, GATED=gated
    )  # fmt: skip
    return _launch(x, w, (groups.token, groups.group), (1, groups.rows, out), x.dtype, blocks, tile, shape)[0]


def _launch(
    x: jax.Array, w: Codes, places: tuple[jax.Array, jax.Array], found: tuple[int, int, int], dtype: jnp.dtype,
    blocks: int, tile: Tile, shape: dict[str, Any],
) -> jax.Array:  # fmt: skip
    channels = x.shape[1]
    rows, group = extent(w.scale.shape, (*w.data.shape[:-1], channels))
    part = triton.cdiv(triton.cdiv(channels, tile.parts), tile.channels) * tile.channels
    (product,) = call(
        _product, (triton.cdiv(found[2], tile.out), blocks, tile.parts), (*arguments(x, w), *places),
        [(found, dtype)], tile.warps, tile.stages, IN=channels, PART=part, SCALE_ROWS=rows, GROUP=group,
        BLOCK_OUT=tile.out, BLOCK_IN=tile.channels, EVEN=channels % part == 0, **shape, **constants(w),
    )  # fmt: skip
    return product


@triton.jit
def _product(
    x, w, scale, zero, tensor_scale, token, group, product, ROWS_X: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
    PART: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
    EVEN: tl.constexpr, LAY_OUT: tl.constexpr, GATED: tl.constexpr, SCALE_ROWS: tl.constexpr, GROUP: tl.constexpr,
    CODE: tl.constexpr, SCALE: tl.constexpr, ZERO: tl.constexpr, TENSOR_SCALE: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(OUT / BLOCK_OUT), blocks, parts of the channels). Without groups there is one matrix."""
    block = tl.program_id(1)
    index = tl.load(group + block) if GROUPS else 0
    if index < GROUPS or GROUPS == 0:
        row = block * BLOCK + tl.arange(0, BLOCK)
        source = tl.load(token + row) if LAY_OUT else tl.minimum(row, ROWS_X - 1)
        inputs = x + source.to(tl.int64)[:, None] * IN
        n = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        # Rows of all matrices together; those past the end read the last one of theirs, and store nothing.
        at = (tl.minimum(n, OUT - 1) + index * (2 * OUT if GATED else OUT)).to(tl.int64)
        total = tl.zeros([BLOCK_OUT, BLOCK], tl.float32)
        total_up = tl.zeros([BLOCK_OUT, BLOCK], tl.float32)
        first = tl.program_id(2) * PART
        for start in tl.range(first, min(first + PART, IN), BLOCK_IN):
            d = start + tl.arange(0, BLOCK_IN)[None, :]
            values = tl.load(inputs + d) if EVEN else tl.load(inputs + d, mask=d < IN, other=0.0)
            total = _add(
                total, values, w, scale, zero, at, start, IN, SCALE_ROWS, GROUP, CODE, SCALE, ZERO, BLOCK_OUT, BLOCK_IN,
                BLOCK, EVEN,
            )  # fmt: skip
            if GATED:
                total_up = _add(
                    total_up, values, w, scale, zero, at + OUT, start, IN, SCALE_ROWS, GROUP, CODE, SCALE, ZERO,
                    BLOCK_OUT, BLOCK_IN, BLOCK, EVEN,
                )  # fmt: skip
        if GROUP == IN and SCALE_ROWS == 1 and not ZERO:
            total *= scale_at(scale, at, SCALE)[:, None]
            if GATED:
                total_up *= scale_at(scale, at + OUT, SCALE)[:, None]
        if TENSOR_SCALE:
            total *= tl.load(tensor_scale)
            total_up *= tl.load(tensor_scale)
        if GATED:  # of products rounded as they would be if they were stored
            gate = total.to(product.dtype.element_ty).to(tl.float32)
            total = gate / (1.0 + tl.exp(-gate)) * total_up.to(product.dtype.element_ty).to(tl.float32)
        place = (tl.program_id(2) * ROWS_X + row).to(tl.int64)[:, None] * OUT + n[None, :]
        stored = (row < ROWS_X)[:, None] & (n < OUT)[None, :]
        tl.store(product + place, tl.trans(total.to(product.dtype.element_ty)), mask=stored)


@triton.jit
def _add(
    total, values, w, scale, zero, row, start, IN: tl.constexpr, SCALE_ROWS: tl.constexpr, GROUP: tl.constexpr,
    CODE: tl.constexpr, SCALE: tl.constexpr, ZERO: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
    BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """`total[BLOCK_OUT, BLOCK]` and the products of `values[BLOCK, BLOCK_IN]`."""
    FOUR: tl.constexpr = CODE == "int4" or CODE == "uint4" or CODE == "fp4"
    EACH: tl.constexpr = 2 if FOUR else 1  # codes in a byte
    byte = start // EACH + tl.arange(0, BLOCK_IN // EACH)[None, :]
    at = w.to(tl.pointer_type(tl.int8)) + row[:, None] * (IN // EACH) + byte
    codes = (tl.load(at) if EVEN else tl.load(at, mask=byte < IN // EACH, other=0)).to(tl.int32)
    WHOLE: tl.constexpr = GROUP == IN and SCALE_ROWS == 1 and not ZERO  # multiplied at the end
    STEP: tl.constexpr = GROUP % BLOCK_IN == 0
    if WHOLE:
        s, z = 1.0, 0.0
    else:
        first = (row // SCALE_ROWS) * ((IN + GROUP - 1) // GROUP)
        if STEP:
            index = (first + start // GROUP)[:, None]
        elif BLOCK_IN % GROUP == 0:
            COUNT: tl.constexpr = BLOCK_IN // GROUP
            part = tl.minimum(start // GROUP + tl.arange(0, COUNT), IN // GROUP - 1)
            index = first[:, None] + part[None, :]
        else:
            index = first[:, None] + tl.minimum(byte * EACH, IN - 1) // GROUP
        s = scale_at(scale, index, SCALE)
        z = tl.load(zero + index).to(tl.float32) if ZERO else 0.0
        if not STEP and BLOCK_IN % GROUP == 0:
            s = _spread(s, BLOCK_OUT, BLOCK_IN // GROUP, GROUP // EACH)
            if ZERO:
                z = _spread(z, BLOCK_OUT, BLOCK_IN // GROUP, GROUP // EACH)
    TAKE: tl.constexpr = not WHOLE and not STEP  # the scales multiply the codes
    if FOUR:
        even, odd = tl.split(tl.reshape(values, (BLOCK, BLOCK_IN // 2, 2)))
        low = _weights(_of_nibble(codes, 0, CODE), s, z, TAKE, ZERO).to(values.dtype)
        high = _weights(_of_nibble(codes, 4, CODE), s, z, TAKE, ZERO).to(values.dtype)
        if WHOLE or TAKE:
            total = tl.dot(low, tl.trans(even), total, input_precision="ieee")
            total = tl.dot(high, tl.trans(odd), total, input_precision="ieee")
        else:
            share = tl.dot(low, tl.trans(even), input_precision="ieee")
            total += tl.dot(high, tl.trans(odd), share, input_precision="ieee") * s
    else:
        part_of = _weights(_of_byte(codes, CODE), s, z, TAKE, ZERO).to(values.dtype)
        if WHOLE or TAKE:
            total = tl.dot(part_of, tl.trans(values), total, input_precision="ieee")
        else:
            total += tl.dot(part_of, tl.trans(values), input_precision="ieee") * s
    return total


@triton.jit
def _spread(scale, BLOCK_OUT: tl.constexpr, COUNT: tl.constexpr, EACH: tl.constexpr):
    """A scale for each byte: `[BLOCK_OUT, COUNT]` -> `[BLOCK_OUT, COUNT * EACH]`."""
    wide = tl.broadcast_to(scale[:, :, None], (BLOCK_OUT, COUNT, EACH))
    return tl.reshape(wide, (BLOCK_OUT, COUNT * EACH))


@triton.jit
def _weights(code, s, z, TAKE: tl.constexpr, ZERO: tl.constexpr):
    if ZERO:
        code -= z
    if TAKE:
        code *= s
    return code


@triton.jit
def _of_nibble(byte, SHIFT: tl.constexpr, CODE: tl.constexpr):
    """The four bits from SHIFT on as float32."""
    if CODE == "fp4":  # the sign, then exponent and mantissa where float32 has its lowest two and its highest
        bits = ((byte << (28 - SHIFT)) >> 6) & -2118123520  # 0x81C00000
        return bits.to(tl.float32, bitcast=True) * 2.0**126
    bits = ((byte >> SHIFT) & 15) | 0x4B000000  # 2^23 more
    return bits.to(tl.float32, bitcast=True) - (8388616.0 if CODE == "int4" else 8388608.0)


@triton.jit
def _of_byte(byte, CODE: tl.constexpr):
    """`byte`, with its sign extended, as float32."""
    if CODE == "int8":
        return ((byte & 255) ^ 0x4B000080).to(tl.float32, bitcast=True) - 8388736.0  # of 2^23 + 128 more
    elif CODE == "e4m3":
        return ((byte << 20) & -2014314496).to(tl.float32, bitcast=True) * 2.0**120  # 0x87F00000
    else:
        return ((byte << 21) & -1881145344).to(tl.float32, bitcast=True) * 2.0**112  # 0x8FE00000
