"""How Triton kernels are launched from a traced step."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

# Triton would write the newest PTX that its own assembler knows, but JAX's assembler reads it: 8.7 is CUDA 12.8's.
OPTIONS = {"ptx_version": 87, "enable_fp_fusion": True}


def call(
    kernel: Any, grid: tuple[int, ...], args: Sequence[Any],
    outs: Sequence[tuple[tuple[int, ...], Any]], warps: int, stages: int, *, in_place: Sequence[jax.Array] = (),
    **constants: Any,
) -> list[jax.Array]:  # fmt: skip
    """Launch a kernel whose arguments are the arrays that it changes in place, then `args`, then its outputs' pointers.
    Returns the changed arrays, then the outputs."""
    import jax_triton

    types = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in in_place]
    types += [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in outs]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "input_output_aliases is deprecated")
        return list(
            jax_triton.triton_call(
                *in_place, *args, kernel=kernel, out_type=types, grid=grid, num_warps=warps, num_stages=stages,
                name=kernel.fn.__name__.lstrip("_"), compute_capability=_capability(), backend_options=OPTIONS,
                input_output_aliases={i: i for i in range(len(in_place))}, **constants,
            )
        )  # fmt: skip


def _capability() -> int | None:
    """None: the GPU of this process. Without one the kernel is lowered for another machine: Hopper."""
    return None if jax.default_backend() == "gpu" else 90
