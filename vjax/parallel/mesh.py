"""The device mesh, and which logical axis lies along which mesh axis."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vjax.errors import CapacityError
from vjax.models.spec import Param

MODEL = "model"  # the tensor-parallel mesh axis

# Matrix products split over heads, the feed-forward width and the vocabulary; the residual stream is replicated.
RULES: dict[str, str | None] = {"kv_heads": MODEL, "heads": MODEL, "mlp": MODEL, "vocab": MODEL, "embed": None}


def make_mesh(tensor_parallel_size: int = 1) -> Mesh:
    """A mesh over the first `tensor_parallel_size` devices. Raises `CapacityError` when there are fewer."""
    devices = jax.devices()
    if len(devices) < tensor_parallel_size:
        raise CapacityError(
            f"tensor_parallel_size={tensor_parallel_size} needs as many devices; "
            f"JAX sees {len(devices)} ({devices[0].platform})."
        )
    return Mesh(np.asarray(devices[:tensor_parallel_size]), (MODEL,))


def sharding(mesh: Mesh, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> NamedSharding:
    """Where an array with these logical axes lives. An axis that the mesh does not divide evenly is replicated."""
    return NamedSharding(mesh, PartitionSpec(*_split(shape, axes, mesh.shape[MODEL])))


def shard_shape(shape: tuple[int, ...], axes: tuple[str | None, ...], size: int) -> tuple[int, ...]:
    """What one of `size` devices holds of such an array."""
    return tuple(n // size if name else n for n, name in zip(shape, _split(shape, axes, size), strict=True))


def _split(shape: tuple[int, ...], axes: tuple[str | None, ...], size: int) -> list[str | None]:
    used = [RULES.get(axis) if axis else None for axis in axes]
    return [name if name and extent % size == 0 else None for name, extent in zip(used, shape, strict=True)]


def param_sharding(mesh: Mesh, param: Param) -> NamedSharding:
    return sharding(mesh, param.shape, param.axes)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())
