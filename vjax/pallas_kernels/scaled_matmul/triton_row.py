"""One row times a weight in narrow codes. Importing this file imports Triton.

A thread decodes eight codes of a weight's row at a time, with as few instructions as their bits allow: four-bit codes
arrive faster than a careless decoder keeps up with. Partial sums are float32, one scale multiplies each eight.
Integers of four bits are put into the mantissa of a float, which adds a constant to each, and the constants' share of
the sum is known from `x` alone. Floats keep their bits, in the wrong exponent: what multiplies the sum makes up for it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import NamedTuple

import jax
import triton
import triton.language as tl

from vjax.pallas_kernels.scaled_matmul.reference import Codes, extent
from vjax.pallas_kernels.scaled_matmul.triton_scale import arguments, constants, scale_at
from vjax.pallas_kernels.triton_call import call


class Tile(NamedTuple):
    """Rows of the weight that a program takes, channels it reads at a time, its warps."""

    out: int
    channels: int
    warps: int


def choose(out: int, channels: int) -> Tile:
    """Not measured yet."""
    block = min(triton.next_power_of_2(channels), 1024)
    return Tile(8 if out >= 8192 else 4, block, max(1, block // 256))


def matmul(x: jax.Array, w: Codes, tile: Tile | None = None) -> jax.Array:
    """`x[1, in]` times `w`, of `data[out, in]`, `scale[out, groups]` and so on -> `[1, out]`."""
    return _launch(x, w, w.data.shape[0], False, tile)


def swiglu(x: jax.Array, w: Codes, tile: Tile | None = None) -> jax.Array:
    """`silu(x[1, in] @ w[0].T) * (x @ w[1].T) -> [1, F]` for `w` of `data[2, F, in]` and so on."""
    return _launch(x, w, w.data.shape[1], True, tile)


def _launch(x: jax.Array, w: Codes, out: int, gated: bool, tile: Tile | None) -> jax.Array:
    channels = x.shape[-1]
    tile = tile or choose(out, channels)
    rows, group = extent(w.scale.shape, (*w.data.shape[:-1], channels))
    (product,) = call(
        _product, (triton.cdiv(out, tile.out),), arguments(x, w), [((1, out), x.dtype)], tile.warps, 1,
        OUT=out, IN=channels, ROWS=rows, GROUP=group, BLOCK_OUT=tile.out, OCTETS=tile.channels // 8, GATED=gated,
        **constants(w),
    )  # fmt: skip
    return product


@triton.jit
def _product(
    x, w, scale, zero, tensor_scale, product, OUT: tl.constexpr, IN: tl.constexpr, ROWS: tl.constexpr,
    GROUP: tl.constexpr, CODE: tl.constexpr, SCALE: tl.constexpr, ZERO: tl.constexpr, TENSOR_SCALE: tl.constexpr,
    BLOCK_OUT: tl.constexpr, OCTETS: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(OUT / BLOCK_OUT),)."""
    n = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    if OUT % BLOCK_OUT:
        row = tl.minimum(n, OUT - 1)  # rows past the end read the last one, and store nothing
    else:
        row = n
    total = tl.zeros((BLOCK_OUT, OCTETS), tl.float32)
    total_up = tl.zeros((BLOCK_OUT, OCTETS), tl.float32)
    for start in range(0, IN // 8, OCTETS):
        octet = start + tl.arange(0, OCTETS)
        values = _octets(x, octet, IN, CODE)
        total = _add(total, values, w, scale, zero, row, octet, IN, ROWS, GROUP, CODE, SCALE, ZERO)
        if GATED:
            total_up = _add(total_up, values, w, scale, zero, row + OUT, octet, IN, ROWS, GROUP, CODE, SCALE, ZERO)
    result = tl.sum(total, 1) * _factor(scale, tensor_scale, row, IN, ROWS, GROUP, CODE, SCALE, ZERO, TENSOR_SCALE)
    if GATED:  # of products rounded as they would be if they were stored
        up = tl.sum(total_up, 1)
        up *= _factor(scale, tensor_scale, row + OUT, IN, ROWS, GROUP, CODE, SCALE, ZERO, TENSOR_SCALE)
        gate = result.to(product.dtype.element_ty).to(tl.float32)
        result = gate / (1.0 + tl.exp(-gate)) * up.to(product.dtype.element_ty).to(tl.float32)
    tl.store(product + n, result.to(product.dtype.element_ty), mask=n < OUT)


@triton.jit
def _octets(x, octet, IN: tl.constexpr, CODE: tl.constexpr):
    """Eight channels of `x` for each octet, what their codes' constants add to the sum, negated, and their own sum."""
    at = octet[:, None] * 8 + tl.arange(0, 8)[None, :]
    eight = tl.load(x + at, mask=at < IN, other=0.0)
    even, odd = tl.split(tl.reshape(eight, (octet.shape[0], 2, 2, 2)))  # by the lowest bit of the channel
    a, c = tl.split(even)
    b, d = tl.split(odd)
    x0, x4 = tl.split(a)
    x2, x6 = tl.split(c)
    x1, x5 = tl.split(b)
    x3, x7 = tl.split(d)
    LIFT: tl.constexpr = 2.0 ** (63 if CODE == "fp4" else 60 if CODE == "e4m3" else 56 if CODE == "e5m2" else 0)
    x0, x1 = x0.to(tl.float32) * LIFT, x1.to(tl.float32) * LIFT
    x2, x3 = x2.to(tl.float32) * LIFT, x3.to(tl.float32) * LIFT
    x4, x5 = x4.to(tl.float32) * LIFT, x5.to(tl.float32) * LIFT
    x6, x7 = x6.to(tl.float32) * LIFT, x7.to(tl.float32) * LIFT
    evens, odds = (x0 + x2) + (x4 + x6), (x1 + x3) + (x5 + x7)
    if CODE == "int4":
        constant = evens * -2056.0 + odds * -136.0
    elif CODE == "uint4":
        constant = evens * -2048.0 + odds * -128.0
    else:
        constant = tl.zeros_like(evens)
    return x0, x1, x2, x3, x4, x5, x6, x7, constant, evens + odds


@triton.jit
def _add(
    total, values, w, scale, zero, row, octet, IN: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr,
    CODE: tl.constexpr, SCALE: tl.constexpr, ZERO: tl.constexpr,
):  # fmt: skip
    """`total[rows, octets]` and these octets' products."""
    here = tl.minimum(octet, IN // 8 - 1)[None, :]  # past the end `x` is zero
    # Neighbouring threads take neighbouring octets, as they do of `x`: nothing moves between threads.
    at = tl.max_contiguous(row.to(tl.int64)[:, None] * (IN // 8) + here, (1, 1))
    WHOLE: tl.constexpr = GROUP == IN and ROWS == 1 and not ZERO  # one scale for the row, multiplied at the end
    share = values[8][None, :] + (total if WHOLE else tl.zeros_like(total))
    if CODE == "int4" or CODE == "uint4" or CODE == "fp4":
        word = tl.load(w.to(tl.pointer_type(tl.int32)) + at)
        # Zero, which the compiler does not know: it would load a constant anew for every weight.
        opaque = (tl.program_id(1) * octet)[None, :]
        for i in tl.static_range(8):
            share += _of_nibble(word, i, CODE, opaque) * values[i][None, :]
    else:
        word = tl.load(w.to(tl.pointer_type(tl.int64)) + at)
        for i in tl.static_range(8):
            share += _of_byte((word >> (32 * (i // 4))).to(tl.int32), i % 4, CODE) * values[i][None, :]
    if WHOLE:
        total = share
    else:
        index = (row // ROWS).to(tl.int64)[:, None] * ((IN + GROUP - 1) // GROUP) + here // (GROUP // 8)
        index = tl.max_contiguous(index, (1, 1))
        if ZERO:
            share -= tl.load(zero + index).to(tl.float32) * values[9][None, :]
        total += share * scale_at(scale, index, SCALE)
    return total


@triton.jit
def _of_nibble(word, i: tl.constexpr, CODE: tl.constexpr, opaque):
    """Nibble i as a float: of integers 2048 (even i) or 128 (odd i) more, of e2m1 times 2^-126."""
    if CODE == "fp4":
        bits = ((word << (28 - 4 * i)) >> 6) & -2118123520  # 0x81C00000
    elif i < 4:
        bits = (word << (12 - 8 * (i // 2))) & (0xF0000 if i % 2 else 0xF000)
    else:
        bits = (word >> (8 * (i // 2) - 12)) & (0xF0000 if i % 2 else 0xF000)
    if CODE != "fp4":
        bits = bits | (opaque + (0x43000000 if i % 2 else 0x45000000))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _of_byte(word, i: tl.constexpr, CODE: tl.constexpr):
    """Byte i as a float: of e4m3 times 2^-120, of e5m2 times 2^-112."""
    top = word << (24 - 8 * i)
    if CODE == "int8":
        return (top >> 24).to(tl.float32)
    elif CODE == "e4m3":
        return ((top >> 4) & -2014314496).to(tl.float32, bitcast=True)  # 0x87F00000
    else:
        return ((top >> 3) & -1881145344).to(tl.float32, bitcast=True)  # 0x8FE00000


@triton.jit
def _factor(
    scale, tensor_scale, row, IN: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, CODE: tl.constexpr,
    SCALE: tl.constexpr, ZERO: tl.constexpr, TENSOR_SCALE: tl.constexpr,
):  # fmt: skip
    """What multiplies a row's whole sum."""
    LIFT: tl.constexpr = 2.0 ** (63 if CODE == "fp4" else 60 if CODE == "e4m3" else 56 if CODE == "e5m2" else 0)
    found = tl.full(row.shape, LIFT, tl.float32)
    if GROUP == IN and ROWS == 1 and not ZERO:
        found *= scale_at(scale, row, SCALE)
    if TENSOR_SCALE:
        found *= tl.load(tensor_scale)
    return found
