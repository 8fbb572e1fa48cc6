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

    # What is changed in place comes last among the outputs: JAX's launcher hands the kernel as many of them as it has
    # parameters left, and these it has already.
    types = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in outs]
    types += [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in in_place]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "input_output_aliases is deprecated")
        found = jax_triton.triton_call(
            *in_place, *args, kernel=kernel, out_type=types, grid=grid, num_warps=warps, num_stages=stages,
            name=kernel.fn.__name__.lstrip("_"), compute_capability=_capability(), backend_options=OPTIONS,
            input_output_aliases={i: len(outs) + i for i in range(len(in_place))}, **constants,
        )  # fmt: skip
    return [*found[len(outs) :], *found[: len(outs)]]


def _capability() -> int | None:
    """None: the GPU of this process. Without one the kernel is lowered for another machine: Hopper."""
    return None if jax.default_backend() == "gpu" else 90
