"""Normalisation layers, computed in float32. A layer's weights are one array for an RMS norm, or a dictionary with
`weight` and perhaps `bias` for LayerNorm (Ba et al., 2016)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from vjax.layers.context import Context
from vjax.pallas_kernels import add_rms_norm as ops
from vjax.pallas_kernels.add_rms_norm import reference, rms_norm

__all__ = ["add_norm", "layer_norm", "norm", "rms_norm", "unit_norm"]


def norm(x: jax.Array, w: Any, eps: float, offset: float = 0.0) -> jax.Array:
    """The norm of `x[..., d]` that the weights are of. Gemma's RMS weights mean `1 + w`: offset 1."""
    if isinstance(w, dict):
        return layer_norm(x, w["weight"], w.get("bias"), eps)
    return rms_norm(x, w, eps, offset)


def unit_norm(x: jax.Array, eps: float) -> jax.Array:
    """The RMS norm of `x[..., d]` without weights."""
    return rms_norm(x, jnp.ones((), jnp.float32), eps)


def add_norm(
    x: jax.Array, update: jax.Array | None, w: Any, eps: float, ctx: Context, offset: float = 0.0
) -> tuple[jax.Array, jax.Array]:
    """The residual stream `x[T, d]` with a layer's output `update[T, d]` added (None: nothing yet), and its norm.

    A pass without a cache stays differentiable.
    """
    if update is None:
        return x, norm(x, w, eps, offset)
    if isinstance(w, dict):
        x = x + update
        return x, norm(x, w, eps, offset)
    add = reference.add_rms_norm if ctx.step is None else ops.add_rms_norm
    return add(x, update, w, eps, offset)


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
    """Over the last axis of `x[..., d]`; `weight` and `bias` broadcast against it."""
    wide = x.astype(jnp.float32)
    wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    wide = wide * lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps) * weight.astype(jnp.float32)
    return (wide if bias is None else wide + bias.astype(jnp.float32)).astype(x.dtype)
