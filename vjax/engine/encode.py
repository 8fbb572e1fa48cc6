"""Runs an `Encoder` over padded batches on the device: a graph for every shape of batch, compiled once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from vjax.engine.messages import PoolRequest
from vjax.engine.pool_queue import TASKS_APART, PoolBuckets
from vjax.models.encoder import Encoder, Task
from vjax.models.spec import Tree

Shape = tuple[Task, int, int]  # rows, length


@dataclass(slots=True)
class EncodePending:
    """A dispatched batch and where its results will be."""

    batch: list[PoolRequest]
    result: jax.Array
    started: float  # time.monotonic()


class EncodeRunner:
    """Embeddings come as they leave the last layer and scores without their activation: what a request wants of them is
    done on the host (`engine.finish`)."""

    def __init__(self, model: Encoder, params: Tree, buckets: PoolBuckets) -> None:
        self.model, self.params, self.buckets = model, params, buckets
        self._ready: dict[Shape, Any] = {}
        self._lock = threading.Lock()
        self._later: ThreadPoolExecutor | None = None

    def dispatch(self, batch: list[PoolRequest], shape: tuple[int, int]) -> EncodePending:
        """Start on the device; all tokens are wanted of all texts or of none."""
        started = time.monotonic()
        task: Task = TASKS_APART if batch[0].task == TASKS_APART else self.model.tasks[0]
        task, rows, length = self._take((task, *shape))
        tokens = np.zeros((rows, length), np.int32)
        lengths, second = np.ones(rows, np.int32), np.full(rows, length, np.int32)
        for row, request in enumerate(batch):
            lengths[row] = len(request.prompt_token_ids)
            tokens[row, : lengths[row]] = request.prompt_token_ids
            if request.second_from is not None:
                second[row] = request.second_from
        result = self._ready[task, rows, length](self.params, tokens, lengths, second)
        result.copy_to_host_async()
        return EncodePending(batch, result, started)

    def read(self, pending: EncodePending) -> list[np.ndarray]:
        """What became of each text: `[d]`, `[labels]` or `[T, d]`."""
        host = np.asarray(pending.result)
        if pending.batch[0].task != TASKS_APART:
            return list(host[: len(pending.batch)])
        return [host[row, : len(request.prompt_token_ids)] for row, request in enumerate(pending.batch)]

    def compile(self, shapes: Sequence[tuple[int, int]], progress: bool) -> None:
        for shape in tqdm(shapes, desc="Compiling graphs", disable=not progress, dynamic_ncols=True):
            self._compile((self.model.tasks[0], *shape))

    def compile_later(self, shapes: Sequence[tuple[int, int]]) -> None:
        """In a thread. A batch that comes before its graph takes a larger one that is ready, or compiles it."""
        self._later = ThreadPoolExecutor(1, thread_name_prefix="vjax-compile")
        for shape in shapes:
            self._later.submit(self._compile, (self.model.tasks[0], *shape))

    def close(self) -> None:
        if self._later is not None:
            self._later.shutdown(wait=False, cancel_futures=True)

    def _take(self, shape: Shape) -> Shape:
        task, rows, length = shape
        if shape in self._ready:
            return shape
        if self._later is not None:
            fits = [one for one in list(self._ready) if one[0] == task and one[1] >= rows and one[2] >= length]
            if fits:
                return min(fits, key=lambda one: one[1] * one[2])
        self._compile(shape)
        return shape

    def _compile(self, shape: Shape) -> None:
        with self._lock:  # one at a time: tracing holds the GIL
            if shape in self._ready:
                return
            task, rows, length = shape
            ints = jax.ShapeDtypeStruct((rows,), jnp.int32)
            lowered = jax.jit(_encode, static_argnums=(0, 1)).lower(
                self.model, task, self.params, jax.ShapeDtypeStruct((rows, length), jnp.int32), ints, ints
            )
            self._ready[shape] = lowered.compile()


def _encode(
    model: Encoder, task: Task, params: Tree, tokens: jax.Array, lengths: jax.Array, second: jax.Array
) -> jax.Array:
    """`second[B]`: where each text's second half begins."""
    types = None
    if model.config.token_types > 1:
        types = (jnp.arange(tokens.shape[1]) >= second[:, None]).astype(jnp.int32)
    return model.encode(params, tokens, lengths, task, types, normalize=False)
