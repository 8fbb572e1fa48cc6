"""What lives on the device between steps, donated to every step and updated in place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from vjax.layers.paging import STATE, Cache, EntryPool, KVPool, StatePool
from vjax.models.config import CacheSpec, ModelConfig, StateSpec
from vjax.parallel.mesh import replicated, shard_shape, sharding


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """The cache, and what each slot (a running request's place) holds. The last slot is a dummy for padding rows.

    `tokens[slots + 1, length]`: the request's tokens by position; a step stores what it samples here and the next one
    reads it, so the host need not know it yet. `page_table[slots + 1, W * G]`: the pages of each slot, one of each
    group of layers for its first tokens, then for the next.
    """

    cache: Cache
    tokens: jax.Array
    page_table: jax.Array


@dataclass(frozen=True)
class StateShape:
    """Sizes of a `State`."""

    pages: int  # per layer, the dummy page 0 included
    page_size: int
    slots: int
    max_model_len: int
    groups: int = 1
    snapshots: int = 0  # of recurrent layers' states

    @property
    def table_width(self) -> int:
        return -(-self.max_model_len // self.page_size) * self.groups


def abstract_state(config: ModelConfig, shape: StateShape, dtype: jnp.dtype, mesh: Mesh) -> State:
    """The state as `ShapeDtypeStruct`s with shardings."""

    def pool(spec: CacheSpec) -> KVPool | EntryPool:
        full, axes = _pages(spec, shape.pages, shape.page_size)
        leaf = jax.ShapeDtypeStruct(full, dtype, sharding=sharding(mesh, full, axes))
        if spec.stride:
            return EntryPool(leaf, shape.pages, -(-shape.page_size // spec.stride))  # type: ignore[arg-type]
        return KVPool(leaf, leaf if spec.values else None, shape.pages)  # type: ignore[arg-type]

    def carried(spec: StateSpec) -> StatePool:
        slots = shape.slots + 1 + shape.snapshots
        arrays = {}
        for name, size, axes in spec.arrays:
            full = (spec.num_layers * slots, *size)
            arrays[name] = jax.ShapeDtypeStruct(full, jnp.float32, sharding=sharding(mesh, full, (None, *axes)))
        return StatePool(arrays, slots)  # type: ignore[arg-type]

    def ints(*size: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(size, jnp.int32, sharding=replicated(mesh))

    cache: Cache = {kind: pool(spec) for kind, spec in config.pools.items()}
    if config.state_spec is not None:
        cache[STATE] = carried(config.state_spec)
    return State(
        cache=cache,
        tokens=ints(shape.slots + 1, shape.max_model_len),  # type: ignore[arg-type]
        page_table=ints(shape.slots + 1, shape.table_width),  # type: ignore[arg-type]
    )


def _pages(spec: CacheSpec, pages: int, page_size: int) -> tuple[tuple[int, ...], tuple[str | None, ...]]:
    """The shape of a pool's keys, and its logical axes."""
    rows = spec.num_layers * pages
    if spec.stride:
        return (rows * -(-page_size // spec.stride), spec.head_dim), (None, None)
    if spec.values:
        return (rows, page_size, spec.num_heads, spec.head_dim), (None, None, "kv_heads", None)
    # Not even an axis of one head: XLA may choose a layout with that axis first, the same in memory, and copy the whole
    # pool into it.
    return (rows, page_size, spec.head_dim), (None, None, None)


def zeros(abstract: State) -> State:
    """A state on the device."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), abstract)


def page_bytes(config: ModelConfig, page_size: int, dtype: jnp.dtype, devices: int = 1) -> int:
    """Bytes that one page costs over all layers of a group, on one of `devices` that share the model."""
    total = 0
    for spec in config.pools.values():
        held = shard_shape(*_pages(spec, 1, page_size), devices)
        total += (2 if spec.values else 1) * math.prod(held) * jnp.dtype(dtype).itemsize
    return total


def state_bytes(config: ModelConfig, slots: int, devices: int = 1) -> int:
    """Bytes of the recurrent layers' state for that many requests and the dummy, on one of `devices`."""
    return (slots + 1) * snapshot_bytes(config, devices)


def snapshot_bytes(config: ModelConfig, devices: int = 1) -> int:
    """The same for one."""
    spec = config.state_spec
    if spec is None:
        return 0
    each = sum(4 * math.prod(shard_shape(size, axes, devices)) for _, size, axes in spec.arrays)
    return spec.num_layers * each
