"""Multi-head latent attention (DeepSeek-V2, 2024), in its absorbed form.

The cache holds one latent for each token instead of keys and values for each head: R channels, from which every head's
key and value could be computed, and P channels of a key that all heads share and that alone is rotated. Since the
up-projections are linear, they move to the query and to the output: heads attend to the latents themselves, as to one
key/value head of R + P channels whose first R are the value.

T tokens, H heads, N channels of a head without positions and P with, V of a value, Q of the queries' latent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vjax.layers.attention import AttentionSpec, attend
from vjax.layers.context import Context
from vjax.layers.norms import norm
from vjax.layers.paging import Cache
from vjax.layers.rope import rotate
from vjax.quant import matmul, matmul_each


class Absorbed(NamedTuple):
    """What attention works on: queries `[T, H, R + P]`, keys `[T, R + P]`, and what queries were made of, `[T, Q]`."""

    query: jax.Array
    key: jax.Array
    source: jax.Array


def latent_attention(
    w: dict[str, Any], x: jax.Array, ctx: Context, cache: Cache | None, spec: AttentionSpec
) -> tuple[jax.Array, Cache | None]:
    """On `x[T, d]`. `w`: `a[Q + R + P, d]` (without `q_norm` just `[R + P, d]`), `q_norm[Q]`, `kv_norm[R]`,
    `q[H, N + P, Q]` (or `[H, N + P, d]`), the up-projections of keys `k_b[H, R, N]` and values `v_b[H, V, R]`,
    `o[d, H * V]`, and optional `a_bias`, `o_bias`."""
    query, key, _ = absorb(w, x, ctx, spec)
    key = key[:, None]  # one head
    out, cache = attend(query[:, None], key, key[..., : w["v_b"].shape[2]], ctx, cache, spec)  # [T, 1, H, R]
    return expand(w, out[:, 0]), cache


def absorb(w: dict[str, Any], x: jax.Array, ctx: Context, spec: AttentionSpec) -> Absorbed:
    nope, rank = w["k_b"].shape[2], w["v_b"].shape[2]
    rotated = w["q"].shape[1] - nope  # P
    down = matmul(x, w["a"])
    if "a_bias" in w:
        down = down + w["a_bias"].astype(x.dtype)
    latent, k_rope = down[:, -rank - rotated : -rotated], down[:, -rotated:]
    source = norm(down[:, : -rank - rotated], w["q_norm"], spec.norm_eps) if "q_norm" in w else x
    q = matmul(source, w["q"])  # [T, H, N + P]
    q_rope = q[..., nope:]
    if spec.rope is not None:
        q_rope, k_rope = rotate(q_rope, ctx.ropes[spec.rope]), rotate(k_rope, ctx.ropes[spec.rope])
    query = jnp.concatenate([matmul_each(q[..., :nope], w["k_b"]), q_rope], axis=-1)
    key = jnp.concatenate([norm(latent, w["kv_norm"], spec.norm_eps), k_rope], axis=-1)
    return Absorbed(query, key, source)


def expand(w: dict[str, Any], out: jax.Array) -> jax.Array:
    """Attended latents `[T, H, R]` -> `[T, d]`."""
    values = matmul_each(out, w["v_b"])  # [T, H, V]
    result = matmul(values.reshape(out.shape[0], -1), w["o"])
    return result + w["o_bias"].astype(out.dtype) if "o_bias" in w else result
