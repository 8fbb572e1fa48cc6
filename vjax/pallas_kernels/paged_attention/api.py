"""The one call that layers make; it picks an implementation when the step is traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.paged_attention import cpu, reference
from vjax.pallas_kernels.paged_attention.preparation import Preparation

MAX_DIM = 256  # wider heads do not fit the kernels' registers
MAX_LATENT = 576  # DeepSeek's
KEYS_ALONE = "the cache holds keys alone"
MAX_GROUP = 128  # queries of one key/value head: a decode tile holds them all


def paged_attention(
    q: jax.Array, k_pool: jax.Array, v_pool: jax.Array | None, page_table: jax.Array, kv_len: jax.Array,
    query_start: jax.Array, positions: jax.Array, *, decode: bool, first_page: int = 0, value_dim: int | None = None,
    scale: float, window: int | None = None, softcap: float | None = None, sinks: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """`q[T, K, G, D]` over the pages of each row; this step's keys and values are already in the pools.

    Pools `[P, page_size, K, D]`; `page_table[S, W]`, whose entries count from `first_page`; `kv_len[S]`; row r's tokens
    are `query_start[r] .. query_start[r + 1]`, at `positions[T]`. In a `decode` step T == S, one token a row. Without
    `v_pool`, `k_pool[P, page_size, D]` is one head's; values, and the output, are its first `value_dim` channels.
    `sinks[K, G]` are scores that take part in each query's softmax, with no value (GPT-OSS).
    """
    options: dict[str, Any] = dict(scale=scale, window=window, softcap=softcap, sinks=sinks)
    rows = page_table, kv_len, query_start, positions
    if v_pool is None:
        return _over_latents(q, k_pool, *rows, decode=decode, first_page=first_page, value_dim=value_dim, **options)
    picked = dispatch.pick("paged_attention", _obstacle(q.shape[2], q.shape[3], scale), cpu.obstacle(q, k_pool))
    if picked == "triton":
        # Imported here: Triton is not on every machine, and slow to import.
        from vjax.pallas_kernels.paged_attention import triton_decode, triton_ragged

        options["first_page"] = first_page
        if decode:
            return triton_decode.decode_attention(q, k_pool, v_pool, page_table, kv_len, **options)
        return triton_ragged.ragged_attention(q, k_pool, v_pool, *rows, **options)
    table = page_table + first_page
    if not decode:
        return reference.ragged_attention(q, k_pool, v_pool, table, *rows[1:], value_dim=value_dim, **options)
    if picked == "native":
        return cpu.decode_attention(q, k_pool, v_pool, table, kv_len, **options)
    return reference.decode_attention(q, k_pool, v_pool, table, kv_len, value_dim=value_dim, **options)


def _over_latents(
    q: jax.Array, pool: jax.Array, page_table: jax.Array, kv_len: jax.Array, query_start: jax.Array,
    positions: jax.Array, *, decode: bool, first_page: int, value_dim: int | None, **options: Any,
) -> jax.Array:  # fmt: skip
    """`paged_attention` where keys hold the values, too. Kernels that need both refuse, if they were asked for."""
    dispatch.pick("paged_attention", KEYS_ALONE, KEYS_ALONE)
    if dispatch.pick("latent_attention", _latent_obstacle(q.shape[3], options["scale"])) == "triton":
        from vjax.pallas_kernels.paged_attention import triton_latent

        row, seen = _each_token(kv_len, query_start, positions, decode)
        sinks = options.pop("sinks")
        options |= {"value_dim": value_dim or q.shape[3], "sinks": None if sinks is None else sinks[0]}
        return triton_latent.latent_attention(
            q[:, 0], pool, page_table, row, seen, first_page=first_page, **options
        )[:, None]  # fmt: skip
    table = page_table + first_page
    if decode:
        return reference.decode_attention(q, pool, None, table, kv_len, value_dim=value_dim, **options)
    return reference.ragged_attention(
        q, pool, None, table, kv_len, query_start, positions, value_dim=value_dim, **options
    )


def append_and_attend(
    qkv: jax.Array, k_pool: jax.Array, v_pool: jax.Array | None, page_table: jax.Array, kv_len: jax.Array,
    preparation: Preparation, *, first_page: int = 0, scale: float, window: int | None = None,
    softcap: float | None = None, sinks: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array] | None:  # fmt: skip
    """What a decode step does between two products, in one kernel; None where there is none for these inputs.

    `qkv[S, K, G + 2, D]`: each key/value head's queries, key and value. Norms and rope as `preparation` says, the key
    and the value into the pools at position `kv_len - 1`, attention: `[S, K, G, D]`, and the pools, changed in place.
    """
    obstacle = _obstacle(qkv.shape[2] - 2, qkv.shape[3], scale)
    if v_pool is None or dispatch.pick("append_and_attend", obstacle) != "triton":
        return None
    from vjax.pallas_kernels.paged_attention import triton_append

    return triton_append.append_and_attend(
        qkv, k_pool, v_pool, page_table, kv_len, preparation, scale=scale, first_page=first_page, window=window,
        softcap=softcap, sinks=sinks,
    )  # fmt: skip


def _each_token(
    kv_len: jax.Array, query_start: jax.Array, positions: jax.Array, decode: bool
) -> tuple[jax.Array, jax.Array]:
    """Of each token its row, and how many keys it sees: none outside of all rows."""
    token = jnp.arange(positions.shape[0], dtype=jnp.int32)
    if decode:
        return token, kv_len
    row = jnp.sum(query_start[1:] <= token[:, None], axis=1, dtype=jnp.int32)  # a search without a loop
    seen = jnp.where(token < query_start[-1], positions + 1, 0)
    return jnp.minimum(row, kv_len.shape[0] - 1), seen


def _latent_obstacle(dim: int, scale: float) -> str | None:
    """Why the latent kernel cannot take these inputs, or None."""
    if dim > MAX_LATENT:
        return f"keys are {dim} wide, more than {MAX_LATENT}"
    return f"the scale is {scale}" if scale <= 0 else None


def _obstacle(groups: int, dim: int, scale: float) -> str | None:
    """Why the kernels cannot take these inputs, or None."""
    if scale <= 0:
        return f"the scale is {scale}"
    if dim > MAX_DIM:
        return f"heads are {dim} wide, more than {MAX_DIM}"
    if groups > MAX_GROUP:
        return f"{groups} query heads share a key head, more than {MAX_GROUP}"
    return None
