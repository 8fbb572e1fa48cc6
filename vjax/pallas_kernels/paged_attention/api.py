"""The one call that layers make; it picks an implementation when the step is traced."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax

from vjax.pallas_kernels.paged_attention import reference

if TYPE_CHECKING:
    from vjax.layers.attention import AttentionSpec
    from vjax.layers.paging import KVPool, PagedStep


def paged_attention(
    q: jax.Array, pool: KVPool, step: PagedStep, positions: jax.Array, spec: AttentionSpec
) -> jax.Array:
    """`q[T, K, G, D]` over the pages of each row; this step's keys and values are already in the pool."""
    pages = step.page_table + spec.pool_layer * pool.pages
    if step.decode:
        attend = partial(reference.decode_attention, scale=spec.scale, window=spec.window, softcap=spec.softcap)
        return attend(q, pool.k, pool.v, pages, step.kv_len)
    attend = partial(reference.ragged_attention, scale=spec.scale, window=spec.window, softcap=spec.softcap)
    return attend(q, pool.k, pool.v, pages, step.kv_len, step.query_start, positions)
