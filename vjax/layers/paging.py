"""The paged key/value cache as layers see it, and the step that says which token belongs where.

T tokens in S rows; a row is one request's consecutive tokens. P pages a layer, `page_size` tokens each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVPool:
    """Keys and values of all layers of one kind: `k`, `v` `[layers * pages, page_size, K, D]`.

    One flat array for all layers, so that a donated pool is updated in place: layer l's page p is row `l * pages + p`.
    """

    k: jax.Array
    v: jax.Array
    pages: int = field(metadata=dict(static=True))

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    def write(self, layer: int, index: jax.Array, k: jax.Array, v: jax.Array) -> KVPool:
        """Store `k`, `v` `[T, K, D]` at token indices `index[T]` of this layer; indices past its pages are dropped."""
        size = self.pages * self.page_size
        total = self.k.shape[0] * self.page_size
        # Padding must leave the pool altogether: a negative index would wrap, one past the layer hits the next layer.
        flat = jnp.where(index < size, index + layer * size, total)

        # XLA turns a scatter of one row into a slice update whose operand it then copies: the whole pool, every layer.
        # A second row that is dropped keeps it a scatter, which runs in place.
        spare = 1 if index.shape[0] == 1 else 0
        flat = jnp.pad(flat, (0, spare), constant_values=total)

        def put(pool: jax.Array, new: jax.Array) -> jax.Array:
            new = jnp.pad(new.astype(pool.dtype), ((0, spare), (0, 0), (0, 0)))
            return pool.reshape(total, *pool.shape[2:]).at[flat].set(new, mode="drop").reshape(pool.shape)

        return KVPool(put(self.k, k), put(self.v, v), self.pages)


Cache = dict[str, KVPool]  # by kind


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PagedStep:
    """One step's layout. Rows of a `decode` step have one token each, so T == S.

    Token positions count from 0 in their request; a key is visible where its position <= the query's.
    """

    row_of_token: jax.Array  # [T] int32
    write_index: jax.Array  # [T] int32: page * page_size + offset, or past the pool for padding
    query_start: jax.Array  # [S + 1] int32: row r's tokens are query_start[r] .. query_start[r + 1]
    kv_len: jax.Array  # [S] int32: keys of the row, this step's included; 0 for an unused row
    page_table: jax.Array  # [S, W] int32
    decode: bool = field(metadata=dict(static=True))
