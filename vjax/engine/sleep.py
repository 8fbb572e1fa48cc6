"""Giving the device's memory back while an engine sleeps: weights to host memory and up again, and JAX's own pool."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.backend
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vjax.errors import VjaxError
from vjax.models.spec import Tree

LEVELS = (1, 2)
TAGS = ("weights", "kv_cache")


@dataclass(frozen=True)
class HostArray:
    """A leaf in host memory, and how it was split over the mesh."""

    data: np.ndarray
    spec: PartitionSpec


def to_host(params: Tree) -> Tree:
    """The tree with host copies in the place of arrays, each of which is deleted once it is copied."""

    def copied(leaf: jax.Array) -> HostArray:
        # On CPU numpy would show the device's own memory, and keep it.
        host = HostArray(np.array(leaf), getattr(leaf.sharding, "spec", PartitionSpec()))
        leaf.delete()
        return host

    return jax.tree.map(copied, params)


def to_device(params: Tree, mesh: Mesh) -> Tree:
    def put(leaf: HostArray) -> jax.Array:
        return jax.device_put(leaf.data, NamedSharding(mesh, leaf.spec))

    return jax.tree.map(put, params, is_leaf=lambda leaf: isinstance(leaf, HostArray))


def release_backend() -> None:
    """Give all device memory of this process back, the pool that JAX keeps on a GPU included. Every array and compiled
    graph of the process is gone after it, whoever's they are; JAX starts its backend anew when it is next used."""
    jax.clear_caches()
    jax.extend.backend.clear_backends()
    gc.collect()


class Sleep:
    """What of a sleeping engine is up again. `load` gives the weights of level 2."""

    def __init__(self, level: int, host: Tree | None, load: Callable[[], Tree], make_mesh: Callable[[], Mesh]) -> None:
        self.level = level
        self._host, self._load, self._make_mesh = host, load, make_mesh
        self._params: Any = None
        self._missing = set(TAGS)

    def wake(self, tags: Iterable[str] | None) -> Tree | None:
        """The weights on the device, once both tags were woken. A failure, such as memory that another process took,
        changes nothing. Raises `VjaxError` for an unknown tag."""
        wanted = set(TAGS if tags is None else tags)
        if unknown := sorted(wanted - set(TAGS)):
            raise VjaxError(f"tags must be of {', '.join(TAGS)}, got {unknown[0]!r}.")
        missing = self._missing - wanted
        if "weights" not in missing and self._params is None:
            self._params = self._load() if self._host is None else to_device(self._host, self._make_mesh())
        self._missing = missing
        return None if missing else self._params


def check_level(level: int) -> None:
    if level not in LEVELS:
        raise VjaxError(f"level must be 1 or 2, got {level!r}.")
