"""Runs Triton kernels in Triton's interpreter, on torch tensors, or on the GPU where JAX has one:

    python3 -m pytest --noconftest tests/pallas_kernels

Import it before Triton.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vjax.pallas_kernels import triton_call

ON_GPU = jax.default_backend() == "gpu"
if ON_GPU:
    jax.config.update("jax_default_matmul_precision", "highest")  # of what kernels are compared with
else:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton")
torch = None if ON_GPU else pytest.importorskip("torch")


def interpret(
    kernel: Any, grid: tuple[int, ...], args: Sequence[Any], outs: Sequence[Any], warps: int, stages: int, *,
    in_place: Sequence[jax.Array] = (), **constants: Any,
) -> list[jax.Array]:  # fmt: skip
    """Stands in for `triton_call.call`. Outputs start as NaN, so that what a kernel leaves out is seen."""
    if ON_GPU:
        return triton_call.call(kernel, grid, args, outs, warps, stages, in_place=in_place, **constants)
    changed = [_tensor(a) for a in in_place]
    inputs = [a if isinstance(a, int) else _tensor(a) for a in args]
    results = [_poisoned(shape, getattr(torch, jnp.dtype(dtype).name)) for shape, dtype in outs]
    kernel[grid](*changed, *inputs, *results, **constants)
    return [jnp.asarray(r.numpy()) for r in (*changed, *results)]


def _tensor(array: jax.Array) -> Any:
    """A copy. Types that NumPy lacks travel as bytes."""
    if array.dtype.kind != "V" and "float8" not in array.dtype.name:
        return torch.from_numpy(np.array(array))
    return torch.from_numpy(np.array(array).view(np.uint8)).view(getattr(torch, array.dtype.name))


def _poisoned(shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.full(shape, float("nan") if dtype.is_floating_point else -(2**30), dtype=dtype)
