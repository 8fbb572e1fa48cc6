"""What the paged attention kernels share. Importing this file imports Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

MASKED = tl.constexpr(-1e30)  # finite: a row with no visible key must give numbers, not NaN
LOG2_E = tl.constexpr(1.4426950408889634)
# Triton would write the newest PTX that its own assembler knows, but JAX's assembler reads it: 8.7 is CUDA 12.8's.
OPTIONS = {"ptx_version": 87, "enable_fp_fusion": True}


def call(
    kernel: Any, grid: tuple[int, ...], args: Sequence[Any],
    outs: Sequence[tuple[tuple[int, ...], Any]], warps: int, stages: int, **constants: Any,
) -> list[jax.Array]:  # fmt: skip
    """Launch a kernel whose arguments are `args`, then its outputs' pointers."""
    import jax_triton

    types = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in outs]
    return list(
        jax_triton.triton_call(
            *args, kernel=kernel, out_type=types, grid=grid, num_warps=warps, num_stages=stages,
            name=kernel.fn.__name__.lstrip("_"), compute_capability=_capability(), backend_options=OPTIONS,
            **constants,
        )
    )  # fmt: skip


def _capability() -> int | None:
    """None: the GPU of this process. Without one the kernel is lowered for another machine: Hopper."""
    return None if jax.default_backend() == "gpu" else 90


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
