"""Compiled graphs by bucket: which exist, which a step takes, and when they are compiled.

A step takes the smallest ready bucket that holds it, so serving starts after the first few and the rest follow in the
background. Steps are `Compiled` objects: a shape that nobody planned is an error, never a silent recompile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
from tqdm import tqdm

from vjax.engine.layout import Layout

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BucketPlan:
    """Sizes of the graphs: decode rows, prefill tokens, and how many rows a prefill step may hold."""

    decode: tuple[int, ...]
    prefill: tuple[int, ...]
    rows: int

    @classmethod
    def make(cls, platform: str, max_num_seqs: int, max_num_batched_tokens: int) -> BucketPlan:
        """Padding is cheap on a GPU below 64 rows, where reading the weights is all the cost; a CPU pays for it."""
        decode: tuple[int, ...]
        prefill: tuple[int, ...]
        if platform == "cpu":
            decode, prefill = (1, 2, 4, 8, 16, 32, 64), (16, 32, 64, 128, 256, 512, 1024, 2048)
        else:
            decode = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
            prefill = (16, 64, 256, 512, 1024, 2048, 4096, 8192)
        return cls(_cut(decode, max_num_seqs), _cut(prefill, max_num_batched_tokens), max_num_seqs)

    def key(self, decode: bool, size: int, *, edits: int = 0, prompt_logprobs: bool = False) -> Layout:
        rows = size if decode else min(size, self.rows)
        room = max(16 * rows, 64)
        while room < edits:
            room *= 4
        return Layout(size, rows, decode, room, prompt_logprobs)

    def keys(self) -> list[Layout]:
        """All buckets, the most useful first: the largest, which can stand in for the others, then up."""
        prefill = [self.prefill[-1], *self.prefill[:-1]]
        decode = [self.decode[-1], *self.decode[:-1]]
        return [self.key(False, t) for t in prefill] + [self.key(True, s) for s in decode]


def _cut(sizes: Iterable[int], limit: int) -> tuple[int, ...]:
    return (*(size for size in sizes if size < limit), limit)


class Graphs:
    """Compiles graphs and hands them out. `lower` traces one key; compiling runs in threads (XLA is C++)."""

    def __init__(self, lower: Callable[[Layout], jax.stages.Lowered], plan: BucketPlan, workers: int) -> None:
        self.plan = plan
        self._lower = lower
        self._ready: dict[Layout, Any] = {}
        self._pending: dict[Layout, Future[Any]] = {}
        self._lock = threading.Lock()
        self._lower_lock = (
            threading.Lock()
        )  # tracing holds the GIL anyway; one at a time keeps it out of the step's way
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="vjax-compile")
        self._closing = False
        self.seconds = 0.0  # spent compiling, summed over threads

    def take(
        self, decode: bool, size: int, *, edits: int = 0, prompt_logprobs: bool = False
    ) -> tuple[Layout, Any]:  # fmt: skip
        """The smallest ready graph that holds `size` tokens; compiles the fitting one if none is ready."""
        sizes = [s for s in (self.plan.decode if decode else self.plan.prefill) if s >= size]
        if not sizes:
            raise ValueError(f"a step of {size} tokens is larger than the largest bucket")
        keys = [self.plan.key(decode, s, edits=edits, prompt_logprobs=prompt_logprobs) for s in sizes]
        for key in keys:
            compiled = self._ready.get(key)
            if compiled is not None:
                return key, compiled
        started = time.monotonic()
        compiled = self._now(keys[0])
        log.info("a step waited %.1f s for graph %s", time.monotonic() - started, keys[0])
        return keys[0], compiled

    def submit(self, key: Layout) -> Future[Any]:
        """Compile in the pool, once; the future gives the compiled graph."""
        with self._lock:
            if key not in self._pending:
                self._pending[key] = self._pool.submit(self._compile, key)
            return self._pending[key]

    def _now(self, key: Layout) -> Any:
        """Compile ahead of what is queued."""
        with self._lock:
            queued = self._pending.get(key)
            if queued is None or queued.cancel():
                done: Future[Any] = Future()
                self._pending[key] = done
            else:
                done = queued
        if done is queued:
            return done.result()
        try:
            done.set_result(self._compile(key))
        except BaseException as error:
            done.set_exception(error)
        return done.result()

    def compile_all(self, keys: list[Layout], progress: bool) -> None:
        """Compile `keys` and wait, with a progress bar."""
        with tqdm(total=len(keys), desc="Compiling", unit="graph", disable=not progress) as bar:
            for future in [self.submit(key) for key in keys]:
                future.result()
                bar.update()

    def compile_later(self, keys: list[Layout]) -> None:
        for key in keys:
            self.submit(key)

    @property
    def ready(self) -> list[Layout]:
        return list(self._ready)

    def wait(self) -> None:
        """Until everything submitted is compiled."""
        for future in list(self._pending.values()):
            future.result()

    def close(self) -> None:
        self._closing = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, key: Layout) -> Any:
        if self._closing:
            raise RuntimeError("the engine is shutting down")
        started = time.monotonic()
        with self._lower_lock:
            lowered = self._lower(key)
        compiled = lowered.compile()
        self._ready[key] = compiled
        self.seconds += time.monotonic() - started
        log.debug("compiled %s in %.1f s", key, time.monotonic() - started)
        return compiled
