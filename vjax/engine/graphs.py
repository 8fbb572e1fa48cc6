"""Compiled graphs by bucket: which exist, which a step takes, and when they are compiled.

A step takes the smallest ready bucket that holds it, so serving starts after the first few and the rest follow in the
background. Steps are `Compiled` objects: a shape that nobody planned is an error, never a silent recompile.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
from tqdm import tqdm

from vjax.engine.layout import GrammarLayout, Layout

log = logging.getLogger(__name__)

Key = Layout | GrammarLayout

FEW = 8  # rows with a grammar that are sampled in a graph of their own size
SHORT_PROMPT = 64  # tokens: a question with its chat template
NICE = 10
# XLA's rematerialization counts the donated cache twice, finds too little memory and recomputes what it need not.
COMPILER_OPTIONS: dict[str, str | bool] = {"xla_disable_hlo_passes": "rematerialization"}


@dataclass(frozen=True)
class BucketPlan:
    """Sizes of the graphs: decode rows, prefill tokens, how many rows a prefill step may hold, and groups of layers."""

    decode: tuple[int, ...]
    prefill: tuple[int, ...]
    rows: int
    groups: int = 1

    @classmethod
    def make(cls, platform: str, max_num_seqs: int, max_num_batched_tokens: int, groups: int = 1) -> BucketPlan:
        """Padding is cheap on a GPU below 64 rows, where reading the weights is all the cost; a CPU pays for it."""
        decode: tuple[int, ...]
        prefill: tuple[int, ...]
        if platform == "cpu":
            decode, prefill = (1, 2, 4, 8, 16, 32, 64), (16, 64, 128, 256, 512, 1024, 2048)
        else:
            decode = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
            prefill = (16, 64, 256, 512, 1024, 2048, 4096, 8192)
        return cls(_cut(decode, max_num_seqs), _cut(prefill, max_num_batched_tokens), max_num_seqs, groups)

    def key(
        self, decode: bool, size: int, *, edits: int = 0, prompt_logprobs: bool = False, chosen_logprobs: bool = False
    ) -> Layout:
        rows = size if decode else min(size, self.rows)
        return Layout(size, rows, decode, _room(rows, edits), prompt_logprobs, self.groups, chosen_logprobs)

    def grammar_key(
        self, rows: int, places: int, vocab: int, *, edits: int = 0, chosen_logprobs: bool = False
    ) -> GrammarLayout:
        """For a step of `rows` rows of which `places` have a grammar: room for a few, or for all."""
        few = min(FEW, rows)
        most = few if places <= few else rows
        return GrammarLayout(rows, most, _room(most, edits), vocab, chosen_logprobs)

    def grammar_keys(self, vocab: int) -> list[GrammarLayout]:
        """All that steps may need, but for those with more edits or chosen logprobs."""
        sizes = {*self.decode, *(min(size, self.rows) for size in self.prefill)}
        keys = [self.grammar_key(rows, places, vocab) for rows in sorted(sizes, reverse=True) for places in (1, rows)]
        return list(dict.fromkeys(keys))

    def keys(self) -> list[Layout]:
        """All buckets, the most useful first: `first`, then the largest decode graph, then up."""
        prefill = [self.key(False, size) for size in self.prefill]
        decode = [self.key(True, size) for size in (self.decode[-1], *self.decode[:-1])]
        return list(dict.fromkeys([*self.first(), decode[0], *prefill, *decode]))

    def first(self) -> list[Layout]:
        """Enough to serve anything, and a single user well: the largest prefill graph stands in for all others, the
        prefill graph of a short question and the one-row decode graph spare it that graph's padding."""
        short = next((size for size in self.prefill if size >= SHORT_PROMPT), self.prefill[-1])
        sizes = dict.fromkeys([(False, self.prefill[-1]), (True, self.decode[0]), (False, short)])
        return [self.key(decode, size) for decode, size in sizes]


def _room(rows: int, edits: int) -> int:
    room = max(16 * rows, 64)
    while room < edits:
        room *= 4
    return room


def _cut(sizes: Iterable[int], limit: int) -> tuple[int, ...]:
    return (*(size for size in sizes if size < limit), limit)


class Graphs:
    """Compiles graphs and hands them out. `lower` traces one key; compiling runs in threads (XLA is C++).

    Tracing holds the GIL, so one thread does all of it, at normal priority: whoever holds the GIL must get to run.
    """

    def __init__(self, lower: Callable[[Any], jax.stages.Lowered], plan: BucketPlan, workers: int) -> None:
        self.plan = plan
        self._lower = lower
        self._ready: dict[Key, Any] = {}
        self._pending: dict[Key, Future[Any]] = {}
        self._lock = threading.Lock()
        self._tracer = ThreadPoolExecutor(1, thread_name_prefix="vjax-trace")
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="vjax-compile", initializer=_yield_to_steps)
        # A request waits for the small graphs of grammars: they do not queue behind those of the warm-up.
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="vjax-grammar", initializer=_yield_to_steps)
        self._closing = False
        self.seconds = 0.0  # spent compiling, summed over threads

    def take(
        self, decode: bool, size: int, *, edits: int = 0, prompt_logprobs: bool = False, chosen_logprobs: bool = False
    ) -> tuple[Layout, Any]:
        """The smallest ready graph that holds `size` tokens; compiles the fitting one if none is ready."""
        sizes = [s for s in (self.plan.decode if decode else self.plan.prefill) if s >= size]
        if not sizes:
            raise ValueError(f"a step of {size} tokens is larger than the largest bucket")
        asked: dict[str, Any] = dict(edits=edits, prompt_logprobs=prompt_logprobs, chosen_logprobs=chosen_logprobs)
        keys = [self.plan.key(decode, s, **asked) for s in sizes]
        for key in keys:
            compiled = self._ready.get(key)
            if compiled is not None:
                return key, compiled
        plain = decode and not chosen_logprobs
        if plain and keys[0] in self._pending and (stand_in := self._prefill_for(size, edits)) is not None:
            return stand_in
        started = time.monotonic()
        compiled = self._now(keys[0])
        log.info("a step waited %.1f s for graph %s", time.monotonic() - started, keys[0])
        return keys[0], compiled

    def _prefill_for(self, rows: int, edits: int) -> tuple[Layout, Any] | None:
        """A ready prefill graph that can run `rows` decode rows; slower than a decode graph, faster than to wait."""
        for size in self.plan.prefill:
            key = self.plan.key(False, size, edits=edits)
            if key.rows >= rows and (compiled := self._ready.get(key)) is not None:
                return key, compiled
        return None

    def get(self, key: Key) -> Any:
        """This very graph, compiled now if need be."""
        found = self._ready.get(key)
        return self._now(key) if found is None else found

    def submit(self, key: Key) -> Future[Any]:
        """Compile in the pool, once; the future gives the compiled graph."""
        with self._lock:
            if key not in self._pending:
                pool = self._ahead if isinstance(key, GrammarLayout) else self._pool
                self._pending[key] = pool.submit(self._compile, key)
            return self._pending[key]

    def _now(self, key: Key) -> Any:
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
        return [key for key in self._ready if isinstance(key, Layout)]

    def wait(self) -> None:
        """Until everything submitted is compiled."""
        for future in list(self._pending.values()):
            future.result()

    def close(self, wait: bool = False) -> None:
        self._closing = True
        for pool in (self._pool, self._ahead, self._tracer):
            pool.shutdown(wait=wait, cancel_futures=True)

    def _compile(self, key: Key) -> Any:
        if self._closing:
            raise RuntimeError("the engine is shutting down")
        started = time.monotonic()
        compiled = self._tracer.submit(self._lower, key).result().compile(compiler_options=COMPILER_OPTIONS)
        self._ready[key] = compiled
        self.seconds += time.monotonic() - started
        log.debug("compiled %s in %.1f s", key, time.monotonic() - started)
        return compiled


def _yield_to_steps() -> None:
    """Linux has a priority for each thread; elsewhere the call would slow down the whole process."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
