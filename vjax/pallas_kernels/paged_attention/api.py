"""The one call that layers make; it picks an implementation when the step is traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.paged_attention import cpu, reference

if TYPE_CHECKING:
    from vjax.layers.attention import AttentionSpec
    from vjax.layers.paging import KVPool, PagedStep

MAX_DIM = 256  # wider heads do not fit the kernels' registers
MAX_GROUP = 128  # queries of one key/value head: a decode tile holds them all


def paged_attention(
    q: jax.Array, pool: KVPool, step: PagedStep, positions: jax.Array, spec: AttentionSpec
) -> jax.Array:
    """`q[T, K, G, D]` over the pages of each row; this step's keys and values are already in the pool."""
    options: dict[str, Any] = dict(scale=spec.scale, window=spec.window, softcap=spec.softcap)
    first_page = spec.pool_layer * pool.pages
    picked = dispatch.pick("paged_attention", _obstacle(q, spec), cpu.obstacle(q, pool.k))
    if picked == "triton":
        return _triton(q, pool, step, positions, first_page, options)
    pages = step.page_table + first_page
    if step.decode:
        decode = cpu if picked == "native" else reference
        return decode.decode_attention(q, pool.k, pool.v, pages, step.kv_len, **options)
    return reference.ragged_attention(q, pool.k, pool.v, pages, step.kv_len, step.query_start, positions, **options)


def _triton(
    q: jax.Array, pool: KVPool, step: PagedStep, positions: jax.Array, first_page: int, options: dict[str, Any]
) -> jax.Array:
    # Imported here: Triton is not on every machine, and slow to import.
    from vjax.pallas_kernels.paged_attention import triton_decode, triton_ragged

    args = (q, pool.k, pool.v, step.page_table, step.kv_len)
    if step.decode:
        return triton_decode.decode_attention(*args, first_page=first_page, **options)
    return triton_ragged.ragged_attention(
        *args, step.query_start, positions, first_page=first_page, **options
    )  # fmt: skip


def _obstacle(q: jax.Array, spec: AttentionSpec) -> str | None:
    """Why the kernels cannot take these inputs, or None."""
    if q.shape[-1] > MAX_DIM:
        return f"heads are {q.shape[-1]} wide, more than {MAX_DIM}"
    if q.shape[-2] > MAX_GROUP:
        return f"{q.shape[-2]} query heads share a key head, more than {MAX_GROUP}"
    if spec.scale <= 0:
        return f"the scale is {spec.scale}"
    return None
