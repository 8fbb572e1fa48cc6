"""Self-attention over one whole sequence or over the paged cache.

T tokens, K key/value heads, G query heads for each of them, D channels a head, d the model's width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from vjax.layers.context import Context
from vjax.layers.norms import norm
from vjax.layers.paging import Cache
from vjax.layers.rope import rotate
from vjax.pallas_kernels.paged_attention import Preparation, append_and_attend, paged_attention
from vjax.quant import matmul

QUERY_BLOCK = 1024
MASKED = -1e30  # finite: a row of -inf alone would give NaN


@dataclass(frozen=True)
class AttentionSpec:
    """How one layer attends, beyond what its weights' shapes say."""

    scale: float
    rope: int | None = 0  # which of the model's ropes; None: no positions (NoPE)
    window: int | None = None  # a query sees this many newest keys, itself included; None: all of them
    softcap: float | None = None
    norm_eps: float = 1e-6  # of the query and key norms, where there are any
    norm_offset: float = 0.0
    norm_after_rope: bool = False
    causal: bool = True  # False: keys on both sides; a window then reaches `window - 1` keys to each
    gated: bool = False  # the output times the sigmoid of a gate, one a channel
    pool: str = "full"  # the kind of its cache, and its place there
    pool_layer: int = 0
    group: int = 0  # whose page table it goes by
    stored: bool = False  # an earlier layer has put its keys and values there


def self_attention(
    w: dict[str, Any], x: jax.Array, ctx: Context, cache: Cache | None, spec: AttentionSpec
) -> tuple[jax.Array, Cache | None]:
    """Grouped-query attention (Ainslie et al., 2023) on `x[T, d]`.

    `w`: `qkv[K, G + 2, D, d]` (each key/value head with its queries, so that it shards by head), `o[d, K * G * D]`,
    optional `qkv_bias[K, G + 2, D]`, `o_bias[d]`, norms `q_norm[D]`, `k_norm[D]`, or `[K * G * D]` and `[K * D]`, and
    `sinks[K, G]`: what each head puts into its softmax as one more score, whose weight goes to no value. With `gate`,
    `[K, G, d]` or `[K, G, D, d]`, the output is multiplied by the softplus of one for each head or channel.
    Where the spec is `gated`, each query is followed by its gate: `[K, 2 * G + 2, D, d]`.
    """
    qkv = matmul(x, w["qkv"])  # [T, K, G + 2, D]
    if "qkv_bias" in w:
        qkv = qkv + w["qkv_bias"].astype(x.dtype)
    out, gate, cache = _attend_at_once(w, qkv, ctx, cache, spec) or _attend_in_steps(w, qkv, ctx, cache, spec)
    if gate is not None:
        out = out * jax.nn.sigmoid(gate)
    if "gate" in w:
        gates = jax.nn.softplus(matmul(x, w["gate"]).astype(jnp.float32)).astype(x.dtype)
        out = out * gates.reshape(*out.shape[:3], -1)
    out = matmul(out.reshape(x.shape[0], -1), w["o"])  # [T, d]
    return (out + w["o_bias"].astype(x.dtype) if "o_bias" in w else out), cache


def _attend_in_steps(
    w: dict[str, Any], qkv: jax.Array, ctx: Context, cache: Cache | None, spec: AttentionSpec
) -> tuple[jax.Array, jax.Array | None, Cache | None]:
    """Norms, rope and attention; the heads' outputs, their gates if there are any, and the cache."""
    groups, gate = qkv.shape[2] - 2, None
    q, k, v = qkv[:, :, :groups], qkv[:, :, groups], qkv[:, :, groups + 1]
    if spec.gated:
        q, gate = q[:, :, ::2], q[:, :, 1::2]
    if "q_norm" in w and not spec.norm_after_rope:
        q, k = _norms(w, q, k, spec)
    if spec.rope is not None:
        q, k = rotate(q, ctx.ropes[spec.rope]), rotate(k, ctx.ropes[spec.rope])
    if "q_norm" in w and spec.norm_after_rope:
        q, k = _norms(w, q, k, spec)
    out, cache = attend(q, k, v, ctx, cache, spec, w.get("sinks"))
    return out, gate, cache


def _attend_at_once(
    w: dict[str, Any], qkv: jax.Array, ctx: Context, cache: Cache | None, spec: AttentionSpec
) -> tuple[jax.Array, None, Cache] | None:
    """The same in a decode step, where one kernel does it all; None elsewhere."""
    if cache is None or ctx.step is None or not ctx.step.decode or spec.gated or spec.stored:
        return None
    norms = [w["q_norm"], w["k_norm"]] if "q_norm" in w else []
    by_head = all(isinstance(weights, jax.Array) and weights.shape == qkv.shape[-1:] for weights in norms)
    if not by_head or (norms and spec.norm_after_rope):
        return None
    step, pool, group = ctx.step, cache[spec.pool], spec.group
    preparation = Preparation() if spec.rope is None else Preparation(*ctx.ropes[spec.rope])
    if norms:
        preparation = preparation._replace(
            q_norm=norms[0], k_norm=norms[1], eps=spec.norm_eps, offset=spec.norm_offset
        )  # fmt: skip
    found = append_and_attend(
        qkv, pool.k, pool.v, step.page_table[group], step.kv_len, preparation,
        first_page=spec.pool_layer * pool.pages, scale=spec.scale, window=spec.window, softcap=spec.softcap,
        sinks=w.get("sinks"),
    )  # fmt: skip
    if found is None:
        return None
    out, k, v = found
    return out, None, {**cache, spec.pool: replace(pool, k=k, v=v)}


def _norms(w: dict[str, Any], q: jax.Array, k: jax.Array, spec: AttentionSpec) -> tuple[jax.Array, jax.Array]:
    """Norms of `q[T, K, G, D]` and `k[T, K, D]`, by head or, where the weights are as wide, over all heads at once."""

    def one(x: jax.Array, weights: Any) -> jax.Array:
        width = jax.tree.leaves(weights)[0].shape[-1]
        return norm(x.reshape(*x.shape[:1], -1, width), weights, spec.norm_eps, spec.norm_offset).reshape(x.shape)

    return one(q, w["q_norm"]), one(k, w["k_norm"])


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, ctx: Context, cache: Cache | None, spec: AttentionSpec,
    sinks: jax.Array | None = None,
) -> tuple[jax.Array, Cache | None]:  # fmt: skip
    """`q[T, K, G, D]` over keys `[T, K, D]` and values `[T, K, Dv]` -> `[T, K, G, Dv]`; with a cache, over all that it
    holds. Where the cache has keys alone, values must be their first channels."""
    if cache is None or ctx.step is None:
        return _attend_whole(q, k, v, ctx, spec, sinks), cache
    step, pool, group = ctx.step, cache[spec.pool], spec.group
    if not spec.stored:
        pool = pool.write(spec.pool_layer, step.write_index[group], k, v)
    out = paged_attention(
        q, pool.k, pool.v, step.page_table[group], step.kv_len, step.query_start, ctx.positions, decode=step.decode,
        first_page=spec.pool_layer * pool.pages, value_dim=v.shape[-1], scale=spec.scale, window=spec.window,
        softcap=spec.softcap, sinks=sinks,
    )  # fmt: skip
    return out, {**cache, spec.pool: pool}


def _attend_whole(
    q: jax.Array, k: jax.Array, v: jax.Array, ctx: Context, spec: AttentionSpec, sinks: jax.Array | None
) -> jax.Array:
    """Over one whole sequence; a long one in blocks of queries, since all weights at once are T * T."""

    def some(q: jax.Array, where: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = attention_weights(q, k, where, ctx.positions, spec, ctx.length, sinks=sinks)
        return weights, jnp.einsum("kgts,skd->tkgd", weights.astype(v.dtype), v, precision=lax.Precision.HIGHEST)

    tokens = q.shape[0]
    if tokens <= QUERY_BLOCK or "attention" in ctx.capture:
        weights, out = some(q, ctx.positions)
        ctx.tap("attention", weights.reshape(-1, *weights.shape[2:]))
        return out
    blocks = -(-tokens // QUERY_BLOCK)
    spare = blocks * QUERY_BLOCK - tokens
    padded = jnp.pad(q, ((0, spare), (0, 0), (0, 0), (0, 0))).reshape(blocks, QUERY_BLOCK, *q.shape[1:])
    where = jnp.pad(ctx.positions, (0, spare)).reshape(blocks, QUERY_BLOCK)
    out = lax.map(lambda block: some(*block)[1], (padded, where))
    return out.reshape(-1, *out.shape[2:])[:tokens]


def attention_weights(
    q: jax.Array, k: jax.Array, where: jax.Array, positions: jax.Array, spec: AttentionSpec,
    length: jax.Array | None = None, selected: jax.Array | None = None, sinks: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """Softmax weights `[K, G, Q, T]` float32 of queries at `where[Q]` over the keys of a sequence at `positions[T]`, of
    which the first `length` count. `selected[Q, T]`: the keys that each query sees, if not all. With `sinks[K, G]` the
    weights of a query sum to less than 1."""
    scores = jnp.einsum("tkgd,skd->kgts", q, k, precision=lax.Precision.HIGHEST).astype(jnp.float32) * spec.scale
    if spec.softcap is not None:
        scores = jnp.tanh(scores / spec.softcap) * spec.softcap
    distance = where[:, None] - positions[None, :]
    visible = distance >= 0 if spec.causal else jnp.full_like(distance, True, bool)
    if spec.window is not None:
        visible &= jnp.abs(distance) < spec.window
    if length is not None:
        visible &= jnp.arange(positions.shape[0]) < length
    if selected is not None:
        visible &= selected
    scores = jnp.where(visible, scores, MASKED)
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    sink = jnp.broadcast_to(sinks.astype(jnp.float32)[:, :, None, None], (*scores.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([scores, sink], axis=-1), axis=-1)[..., :-1]
