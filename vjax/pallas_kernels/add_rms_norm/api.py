"""The one call that layers make; it picks an implementation when the step is traced."""

from __future__ import annotations

import jax

from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.add_rms_norm import reference

MAX_WIDTH = 32768  # a row must fit one program's registers


def add_rms_norm(
    x: jax.Array, update: jax.Array, weight: jax.Array, eps: float, offset: float = 0.0
) -> tuple[jax.Array, jax.Array]:
    """`x[T, d] + update[T, d]` and its norm, both `[T, d]` in `x`'s dtype. Not differentiable where a kernel runs."""
    obstacle = f"rows are {x.shape[-1]} wide, more than {MAX_WIDTH}" if x.shape[-1] > MAX_WIDTH else None
    if dispatch.pick("add_rms_norm", obstacle) == "triton":
        # Imported here: Triton is not on every machine, and slow to import.
        from vjax.pallas_kernels.add_rms_norm import triton_kernel

        return triton_kernel.add_rms_norm(x, update, weight, eps, offset)
    return reference.add_rms_norm(x, update, weight, eps, offset)
