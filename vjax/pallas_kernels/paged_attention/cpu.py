"""Paged decode attention as one call of the native library. In plain XLA the loop over pages costs a CPU more than the
arithmetic, since every operation in it is dispatched on its own. Ragged steps have more to compute and stay there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

LANES = 16  # channels of the widest vector: heads must be a multiple of it


def obstacle(q: jax.Array, k_pool: jax.Array) -> str | None:
    """Why `decode_attention` cannot take these arrays, or None."""
    if q.dtype != jnp.float32 or k_pool.dtype != jnp.float32:
        return f"queries are {q.dtype} and the cache is {k_pool.dtype}"
    return f"heads are {q.shape[-1]} wide, no multiple of {LANES}" if q.shape[-1] % LANES else None


def decode_attention(
    q: jax.Array, k_pool: jax.Array, v_pool: jax.Array, page_table: jax.Array, kv_len: jax.Array, *, scale: float,
    window: int | None = None, softcap: float | None = None, sinks: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """As `reference.decode_attention`; an unused row (`kv_len` 0) gives zeros."""
    none = jnp.zeros(0, jnp.float32)
    call = jax.ffi.ffi_call("vjax_paged_decode", jax.ShapeDtypeStruct(q.shape, q.dtype))
    return call(
        q, k_pool, v_pool, page_table.astype(jnp.int32), kv_len.astype(jnp.int32),
        none if sinks is None else sinks.astype(jnp.float32).reshape(-1),
        scale=np.float32(scale), softcap=np.float32(softcap or 0), window=np.int64(window or 0),
    )  # fmt: skip
