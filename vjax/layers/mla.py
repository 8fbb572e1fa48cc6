"""Multi-head latent attention (DeepSeek-V2, 2024), in its absorbed form.

The cache holds one latent for each token instead of keys and values for each head: R channels, from which every head's
key and value could be computed, and P channels of a key that all heads share and that alone is rotated. Since the
up-projections are linear, they move to the query and to the output: heads attend to the latents themselves, as to one
key/value head of R + P channels whose first R are the value.

T tokens, H heads, N channels of a head without positions and P with, V of a value, Q of the queries' latent.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from vjax.layers.attention import AttentionSpec, attend
from vjax.layers.context import Context
from vjax.layers.norms import norm
from vjax.layers.paging import Cache
from vjax.layers.rope import rotate
from vjax.quant import matmul, matmul_each


def latent_attention(
    w: dict[str, Any], x: jax.Array, ctx: Context, cache: Cache | None, spec: AttentionSpec
) -> tuple[jax.Array, Cache | None]:
    """On `x[T, d]`. `w`: `a[Q + R + P, d]` (without `q_norm` just `[R + P, d]`), `q_norm[Q]`, `kv_norm[R]`,
    `q[H, N + P, Q]` (or `[H, N + P, d]`), the up-projections of keys `k_b[H, R, N]` and values `v_b[H, V, R]`,
    `o[d, H * V]`, and optional `a_bias`, `o_bias`."""
    nope, rank = w["k_b"].shape[2], w["v_b"].shape[2]
    down = matmul(x, w["a"])
    if "a_bias" in w:
        down = down + w["a_bias"].astype(x.dtype)
    q, latent, k_rope = x, down[:, -rank - _rotated(w) : -_rotated(w)], down[:, -_rotated(w) :]
    if "q_norm" in w:
        q = norm(down[:, : -rank - _rotated(w)], w["q_norm"], spec.norm_eps)
    q = matmul(q, w["q"])  # [T, H, N + P]
    q_rope = q[..., nope:]
    if spec.rope is not None:
        q_rope, k_rope = rotate(q_rope, ctx.ropes[spec.rope]), rotate(k_rope, ctx.ropes[spec.rope])
    query = jnp.concatenate([matmul_each(q[..., :nope], w["k_b"]), q_rope], axis=-1)  # [T, H, R + P]
    key = jnp.concatenate([norm(latent, w["kv_norm"], spec.norm_eps), k_rope], axis=-1)[:, None]  # [T, 1, R + P]
    out, cache = attend(query[:, None], key, key[..., :rank], ctx, cache, spec)  # [T, 1, H, R]
    out = matmul(matmul_each(out[:, 0], w["v_b"]).reshape(x.shape[0], -1), w["o"])
    return (out + w["o_bias"].astype(x.dtype) if "o_bias" in w else out), cache


def _rotated(w: dict[str, Any]) -> int:
    """P."""
    return w["q"].shape[1] - w["k_b"].shape[2]
