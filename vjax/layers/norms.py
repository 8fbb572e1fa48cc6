"""Normalisation layers, computed in float32."""

from __future__ import annotations

import jax

from vjax.layers.context import Context
from vjax.pallas_kernels import add_rms_norm as ops
from vjax.pallas_kernels.add_rms_norm import reference, rms_norm

__all__ = ["add_rms_norm", "rms_norm"]


def add_rms_norm(
    x: jax.Array, update: jax.Array | None, weight: jax.Array, eps: float, ctx: Context, offset: float = 0.0
) -> tuple[jax.Array, jax.Array]:
    """The residual stream `x[T, d]` with a layer's output `update[T, d]` added (None: nothing yet), and its norm.

    Gemma's weights mean `1 + w`: offset 1. A pass without a cache stays differentiable.
    """
    if update is None:
        return x, rms_norm(x, weight, eps, offset)
    add = reference.add_rms_norm if ctx.step is None else ops.add_rms_norm
    return add(x, update, weight, eps, offset)
