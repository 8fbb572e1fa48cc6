"""The paged key/value cache as layers see it, and the step that says which token belongs where.

T tokens in S rows; a row is one request's consecutive tokens. P pages a layer, `page_size` tokens each. Layers that see
equally far share a page table, as one of G groups; mostly there is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVPool:
    """Keys and values of all layers of one kind: `k`, `v` `[layers * pages, page_size, K, D]`. Without `v` there
    is one head and no axis for it: `k[layers * pages, page_size, D]`, and values are the first channels of the keys.

    One flat array for all layers, so that a donated pool is updated in place: layer l's page p is row `l * pages + p`.
    """

    k: jax.Array
    v: jax.Array | None
    pages: int = field(metadata=dict(static=True))

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    def write(self, layer: int, index: jax.Array, k: jax.Array, v: jax.Array | None = None) -> KVPool:
        """Store `k`, `v` `[T, K, D]` at token indices `index[T]` of this layer; indices past its pages are dropped."""
        size, total = self.pages * self.page_size, self.k.shape[0] * self.page_size

        def put(pool: jax.Array, new: jax.Array) -> jax.Array:
            return _put(pool.reshape(total, *pool.shape[2:]), layer * size, size, index, new).reshape(pool.shape)

        return KVPool(put(self.k, k), None if self.v is None or v is None else put(self.v, v), self.pages)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EntryPool:
    """Entries that stand for several tokens each: `k[layers * pages * page_size, D]`, of which a page has `page_size`.

    An axis for them would often be of size one, in a layout of XLA's choice, into which it copies the whole pool.
    """

    k: jax.Array
    pages: int = field(metadata=dict(static=True))
    page_size: int = field(metadata=dict(static=True))

    def write(self, layer: int, index: jax.Array, k: jax.Array) -> EntryPool:
        """As `KVPool.write`, by indices of entries."""
        size = self.pages * self.page_size
        return EntryPool(_put(self.k, layer * size, size, index, k), self.pages, self.page_size)


def _put(pool: jax.Array, start: int, size: int, index: jax.Array, new: jax.Array) -> jax.Array:
    """`pool[N, ...]` with `new[T, ...]` at `start + index[T]`, where the index is below `size`."""
    # Padding must leave the pool altogether: a negative index would wrap, one past the layer hits the next layer.
    flat = jnp.where(index < size, index + start, pool.shape[0])

    # XLA turns a scatter of one row into a slice update whose operand it then copies: the whole pool, every layer.
    # A second row that is dropped keeps it a scatter, which runs in place.
    spare = 1 if index.shape[0] == 1 else 0
    flat, rest = jnp.pad(flat, (0, spare), constant_values=pool.shape[0]), pool.shape[1:]
    new = jnp.pad(new.reshape(-1, *rest).astype(pool.dtype), ((0, spare), *[(0, 0)] * len(rest)))
    return pool.at[flat].set(new, mode="drop")


STATE = "state"  # the kind of the pool below


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StatePool:
    """What recurrent layers carry from token to token: each array is `[layers * slots, ...]` float32.

    A slot is a running request's place; then come a dummy for unused rows, and snapshots for the prefix cache.
    Layer l's slot s is row `l * slots + s`.
    """

    arrays: dict[str, jax.Array]
    slots: int = field(metadata=dict(static=True))

    def read(self, layer: int, step: PagedStep) -> dict[str, jax.Array]:
        """The state `[S, ...]` of each row before its first token: zeros at the start of a request, whatever the slot
        held before. So a request that is computed again after a preemption needs no reset."""
        first = step.kv_len - jnp.diff(step.query_start)  # position of a row's first token; < 1 for unused rows

        def get(pool: jax.Array) -> jax.Array:
            held = pool[layer * self.slots + step.slot]
            return jnp.where((first > 0).reshape(-1, *[1] * (held.ndim - 1)), held, 0)

        return {name: get(pool) for name, pool in self.arrays.items()}

    def write(self, layer: int, step: PagedStep, new: dict[str, jax.Array]) -> StatePool:
        """Store the state `[S, ...]` after each row's last token. Unused rows write to the dummy slot."""
        index = layer * self.slots + step.slot
        spare = 1 if index.shape[0] == 1 else 0  # as in `_put`

        def put(pool: jax.Array, value: jax.Array) -> jax.Array:
            rows = jnp.pad(index, (0, spare), constant_values=pool.shape[0])
            value = jnp.pad(value.astype(pool.dtype), ((0, spare), *[(0, 0)] * (value.ndim - 1)))
            return pool.at[rows].set(value, mode="drop")

        return StatePool({name: put(pool, new[name]) for name, pool in self.arrays.items()}, self.slots)

    def copy(self, source: jax.Array, target: jax.Array) -> StatePool:
        """Slot `source`'s state to slot `target`, in all layers."""

        def put(pool: jax.Array) -> jax.Array:
            first = jnp.arange(0, pool.shape[0], self.slots)
            rows = jnp.append(first + target, pool.shape[0])  # one more that is dropped, as in `_put`
            value = pool[jnp.append(first + source, 0)]
            return pool.at[rows].set(value, mode="drop")

        return StatePool({name: put(pool) for name, pool in self.arrays.items()}, self.slots)


Cache = dict[str, Any]  # by kind: a KVPool or an EntryPool, or a StatePool under STATE


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PagedStep:
    """One step's layout. Rows of a `decode` step have one token each, so T == S.

    Token positions count from 0 in their request; a key is visible where its position <= the query's.
    """

    row_of_token: jax.Array  # [T] int32
    write_index: tuple[jax.Array, ...]  # by group, [T] int32: page * page_size + offset, or past the pool for padding
    query_start: jax.Array  # [S + 1] int32: row r's tokens are query_start[r] .. query_start[r + 1]
    kv_len: jax.Array  # [S] int32: keys of the row, this step's included; 0 for an unused row
    page_table: tuple[jax.Array, ...]  # by group, [S, W] int32; what is behind its window may be another request's
    slot: jax.Array  # [S] int32: the row's place in the state; a dummy for unused rows
    decode: bool = field(metadata=dict(static=True))
