"""Drives an engine from a test: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from vjax.config import EngineConfig
from vjax.engine.engine import Engine
from vjax.engine.graphs import BucketPlan
from vjax.engine.messages import EngineOutput, EngineRequest
from vjax.engine.sampling import greedy
from vjax.engine.scheduler import Scheduler
from vjax.sampling_params import SamplingParams


@contextmanager
def greedy_graphs() -> Iterator[None]:
    """Steps compiled meanwhile only take the most likely token: without sampling, compiling takes a third less. Nor are
    they written to the compilation cache, which would take another tenth."""

    def rows(logits: Any, fields: Any, state: Any, last_token: Any, top: int, processed: bool) -> Any:
        return jnp.pad(greedy(logits)[:, None], ((0, 0), (0, 2 + 2 * top if top else 0)))

    cached = jax.config.jax_enable_compilation_cache
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vjax.engine.step._sample", rows)
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # which otherwise stays with what it saw first
        try:
            yield
        finally:
            jax.config.update("jax_enable_compilation_cache", cached)
            compilation_cache.reset_cache()


class Driver:
    """An engine, and what its requests gave."""

    def __init__(self, config: EngineConfig, few_graphs: bool = False, one_graph: bool = False) -> None:
        """`few_graphs`: only the largest bucket of each kind, so that a test compiles two graphs. `one_graph`: what
        decodes goes through that of prefill, too, as while its own is compiled."""
        self.engine = Engine(config)
        graphs = self.engine.runner.graphs
        if few_graphs or one_graph:
            graphs.plan = BucketPlan(graphs.plan.decode[-1:], graphs.plan.prefill[-1:], graphs.plan.rows)
        if one_graph:
            take = graphs.take
            graphs.take = lambda decode, *args, **options: take(False, *args, **options)  # type: ignore[method-assign]
        self._ids = count()

    def add(self, prompt: Sequence[int], params: SamplingParams, **fields: Any) -> str:
        request_id = f"r{next(self._ids)}"
        ids = [int(token) for token in prompt]
        self.engine.add(EngineRequest(request_id=request_id, prompt_token_ids=ids, params=params, **fields))
        return request_id

    def run(self, limit: int = 2000) -> dict[str, list[EngineOutput]]:
        """Step until nothing is left."""
        found: dict[str, list[EngineOutput]] = {}
        for _ in range(limit):
            if not self.engine.has_work:
                return found
            for output in self.engine.step():
                found.setdefault(output.request_id, []).append(output)
        raise AssertionError(f"the engine still has work after {limit} steps")

    def tokens(self, prompts: Sequence[Sequence[int]], params: SamplingParams, **fields: Any) -> list[list[int]]:
        """The tokens of several requests that run together."""
        ids = [self.add(prompt, params, **fields) for prompt in prompts]
        found = self.run()
        return [[token for output in found[i] for token in output.new_token_ids] for i in ids]

    def greedy(self, prompts: Sequence[Sequence[int]], n: int) -> list[list[int]]:
        return self.tokens(prompts, SamplingParams(temperature=0, max_tokens=n, ignore_eos=True))

    def chunk(self, size: int) -> None:
        """Prompts are computed in pieces of `size` tokens from now on; forgets cached pages."""
        self.engine.scheduler.chunk = size
        self.engine.reset_prefix_cache()

    @contextmanager
    def few_pages(self, tokens: int) -> Iterator[None]:
        """The host plans with just the pages for a request of that many tokens, and without a prefix cache; the
        device's graphs stay."""
        engine, runner = self.engine, self.engine.runner
        before = engine.scheduler
        groups, chunk = before.groups, runner.shape.slots
        engine.scheduler = Scheduler(
            num_pages=groups.held(tokens, chunk) + 1, page_size=groups.page_size, num_slots=runner.shape.slots,
            max_num_batched_tokens=chunk, max_model_len=before.max_model_len, windows=groups.windows,
            enable_prefix_caching=False,
        )  # fmt: skip
        yield
        engine.scheduler = before

    def close(self) -> None:
        self.engine.shutdown()
