"""Buffers of a step that stay where they are.

XLA records a step as a CUDA graph and records it anew, at a microsecond or two a kernel, in every step in which one of
its buffers is elsewhere than in the last. The state and the temporaries stay in place by themselves. Here the plan is
copied to a place of its own, and results and logits are donated back to the step that writes them next.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from vjax.parallel.mesh import replicated

Places = dict[str, jax.ShapeDtypeStruct]


class Kept:
    """The places, which steps of one shape share."""

    def __init__(self, mesh: Mesh) -> None:
        self._arrays: dict[tuple[str, tuple[int, ...]], jax.Array] = {}
        self._sharding = replicated(mesh)
        # Not donated to the copy of a result: the copy is what the host reads while the next step writes here.
        self._copied = jax.jit(lambda result: jax.tree.map(jnp.copy, result))
        self._moved = jax.jit(lambda place, new: jnp.copy(new), donate_argnums=0, keep_unused=True)

    def prepare(self, size: int, places: Places) -> None:
        """Compile the copies for a plan of `size` words and these results, before a step needs them."""
        plan = np.zeros(size, np.int32)
        self._moved(jnp.zeros(plan.shape, plan.dtype, device=self._sharding), plan)
        empty = {name: self._empty(place) for name, place in places.items()}
        self.copied({name: array for name, array in empty.items() if name != "logits"})

    def plan(self, buffer: np.ndarray) -> jax.Array:
        """The plan `int32 [size]`, always at one address for its size."""
        key = ("plan", buffer.shape)
        if key not in self._arrays:
            self._arrays[key] = jnp.zeros(buffer.shape, buffer.dtype, device=self._sharding)
        self._arrays[key] = self._moved(self._arrays[key], buffer)
        return self._arrays[key]

    def take(self, places: Places) -> dict[str, jax.Array]:
        """Arrays to be donated to a step. What the last one left in them is gone then."""
        found = {}
        for name, place in places.items():
            array = self._arrays.pop((name, place.shape), None)
            found[name] = self._empty(place) if array is None else array
        return found

    def keep(self, result: dict[str, jax.Array], places: Places) -> dict[str, jax.Array]:
        """Hold what the step wrote in its places; copies of everything but the logits, for the host."""
        for name in places:
            self._arrays[name, result[name].shape] = result[name]
        return self.copied({name: array for name, array in result.items() if name != "logits"})

    def copied(self, result: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """In buffers of their own, so that those of the graph are free, or stay where they are."""
        copies: dict[str, Any] = self._copied(result)
        return copies

    def _empty(self, place: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.zeros(place.shape, place.dtype, device=place.sharding)
