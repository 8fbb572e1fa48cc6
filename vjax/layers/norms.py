"""Normalisation layers, computed in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def rms_norm(x: jax.Array, weight: jax.Array, eps: float, offset: float = 0.0) -> jax.Array:
    """Root-mean-square norm over the last axis (Zhang and Sennrich, 2019); Gemma's weights mean `1 + w` (offset 1)."""
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (wide * (weight.astype(jnp.float32) + offset)).astype(x.dtype)
