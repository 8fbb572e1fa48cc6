"""The specification: plain jnp, differentiable, on any platform."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def rms_norm(x: jax.Array, weight: jax.Array, eps: float, offset: float = 0.0) -> jax.Array:
    """Root-mean-square norm over the last axis (Zhang and Sennrich, 2019) in float32, scaled by `weight + offset`."""
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (wide * (weight.astype(jnp.float32) + offset)).astype(x.dtype)


def add_rms_norm(
    x: jax.Array, update: jax.Array, weight: jax.Array, eps: float, offset: float = 0.0
) -> tuple[jax.Array, jax.Array]:
    """`x + update` in `x`'s dtype, and its norm."""
    total = x + update
    return total, rms_norm(total, weight, eps, offset)
