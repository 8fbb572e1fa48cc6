"""Manifold-constrained hyper-connections (Xie et al., 2026): the residual stream is N streams side by side. Each half
of a block reads a mixture of them, and they mix among themselves by a matrix whose rows and columns sum to 1.

T tokens, N streams, d channels. All weights come from the streams themselves: `fn[M, N * d]` of their norm, scaled by
`scale` and moved by `base[M]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vjax.layers.norms import unit_norm


@dataclass(frozen=True)
class HyperSpec:
    streams: int
    iterations: int  # of Sinkhorn and Knopp's alternation
    eps: float
    norm_eps: float


class Mixing(NamedTuple):
    """How an output `[T, d]` goes to the streams: its share in each `[T, N]`, and what each old stream gives each new
    one, `[T, N, N]`."""

    share: jax.Array
    among: jax.Array


def enter(w: dict[str, Any], x: jax.Array, spec: HyperSpec) -> tuple[jax.Array, Mixing]:
    """What half a block reads of `x[T, N, d]`, as `[T, d]`, and how its output will go back. `w`: `fn` and `base` of
    M = 2 N + N * N, `scale[3]`."""
    n = spec.streams
    raw, base, scale = _raw(w, x, spec), w["base"].astype(jnp.float32), w["scale"].astype(jnp.float32)
    share = 2 * jax.nn.sigmoid(raw[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    among = (raw[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n)
    among = jax.nn.softmax(among, axis=-1) + spec.eps
    among = among / (jnp.sum(among, axis=1, keepdims=True) + spec.eps)
    for _ in range(spec.iterations - 1):
        among = among / (jnp.sum(among, axis=2, keepdims=True) + spec.eps)
        among = among / (jnp.sum(among, axis=1, keepdims=True) + spec.eps)
    return _read(raw[:, :n] * scale[0] + base[:n], x, spec), Mixing(share, among)


def leave(out: jax.Array, x: jax.Array, mixing: Mixing) -> jax.Array:
    """The streams after half a block put out `out[T, d]`."""
    share, among = (each.astype(x.dtype) for each in mixing)
    mixed = jnp.einsum("tij,tid->tjd", among, x, precision=lax.Precision.HIGHEST)
    return share[:, :, None] * out[:, None] + mixed


def collapse(w: dict[str, Any], x: jax.Array, spec: HyperSpec) -> jax.Array:
    """`x[T, N, d]` -> `[T, d]`, after the last layer. `w`: `fn` and `base` of M = N, `scale[1]`."""
    return _read(_raw(w, x, spec) * w["scale"].astype(jnp.float32) + w["base"].astype(jnp.float32), x, spec)


def _raw(w: dict[str, Any], x: jax.Array, spec: HyperSpec) -> jax.Array:
    """`[T, M]` float32."""
    flat = unit_norm(x.reshape(x.shape[0], -1).astype(jnp.float32), spec.norm_eps)
    return jnp.einsum("tc,mc->tm", flat, w["fn"].astype(jnp.float32), precision=lax.Precision.HIGHEST)


def _read(weights: jax.Array, x: jax.Array, spec: HyperSpec) -> jax.Array:
    weights = jax.nn.sigmoid(weights) + spec.eps
    return jnp.sum(weights[:, :, None] * x.astype(jnp.float32), axis=1).astype(x.dtype)
