"""How Triton kernels are launched from a traced step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

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
