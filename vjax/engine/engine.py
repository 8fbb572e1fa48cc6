"""The engine: a scheduler and a runner, joined by a loop that keeps the device one step ahead of the host."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable

import jax
import jax.numpy as jnp

from vjax.config import EngineConfig
from vjax.engine import limits, platform
from vjax.engine.graphs import BucketPlan
from vjax.engine.messages import EngineLimits, EngineOutput, EngineRequest, EngineStats
from vjax.engine.runner import Pending, Runner
from vjax.engine.scheduler import Scheduler
from vjax.loading.load import load_model
from vjax.models.model import Model
from vjax.models.spec import Tree
from vjax.pallas_kernels import dispatch
from vjax.parallel.mesh import make_mesh

log = logging.getLogger(__name__)


class Engine:
    """Takes `EngineRequest`s, gives `EngineOutput`s. One thread calls it; nothing in it blocks but `step`."""

    def __init__(self, config: EngineConfig, model: Model | None = None, params: Tree | None = None) -> None:
        """Loads the model (unless given), sizes the cache and compiles the first graphs. Progress goes to stderr."""
        platform.prepare(config)
        clock = _Clock(config.use_tqdm_on_load)
        mesh = make_mesh(config.tensor_parallel_size)
        dispatch.choose(config.kernels, devices=mesh.size)
        clock.lap("devices")
        if model is None or params is None:
            model, params = load_model(config, mesh)
        clock.lap("weights")
        dtype = compute_dtype(params)
        shape = limits.state_shape(config, model.config, dtype, largest_weight=largest_leaf(params))
        buckets = BucketPlan.make(
            platform.platform(), shape.slots, limits.max_num_batched_tokens(config), shape.groups
        )  # fmt: skip
        self.config, self.model = config, model
        self.runner = Runner(
            model,
            params,
            mesh,
            shape,
            buckets,
            cache_dtype=dtype,
            max_logprobs=config.max_logprobs,
            processed_logprobs=config.logprobs_mode == "processed_logprobs",
            workers=compile_workers(),
        )
        clock.lap("cache")
        caching = limits.prefix_caching(config, model.config) and (not model.config.state_spec or shape.snapshots > 0)
        if not caching and config.enable_prefix_caching is not False:
            log.info("Prefix caching is off: recurrent layers need snapshots for it, and room for them.")
        self.scheduler = Scheduler(
            num_pages=shape.pages,
            page_size=shape.page_size,
            num_slots=shape.slots,
            max_num_batched_tokens=buckets.prefill[-1],
            max_model_len=shape.max_model_len,
            windows=model.config.windows,
            enable_prefix_caching=caching,
            snapshots=shape.snapshots,
            policy=config.scheduling_policy,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            seed=config.seed,
        )
        self._pending: Pending | None = None
        self._warm_up(config, buckets)
        clock.lap("graphs")
        self.limits = EngineLimits(
            max_model_len=shape.max_model_len,
            vocab_size=model.config.vocab_size,
            max_logprobs=config.max_logprobs,
            max_num_seqs=shape.slots,
            num_pages=shape.pages,
            block_size=shape.page_size,
            eos_token_ids=list(model.config.eos_token_ids),
            architecture=model.config.architecture,
            dtype=str(jnp.dtype(dtype)),
        )
        clock.report(self.limits)

    def add(self, request: EngineRequest) -> None:
        self.scheduler.add(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests, at any moment. Unknown ids are ignored."""
        for request_id in request_ids:
            self.scheduler.abort(request_id)

    @property
    def has_work(self) -> bool:
        return self._pending is not None or self.scheduler.has_work

    def step(self) -> list[EngineOutput]:
        """One turn: start the next step, then read the last one, which ran meanwhile."""
        last, self._pending = self._pending, None
        plan = self.scheduler.plan()
        if plan is not None and plan.rows:
            self._pending = self.runner.dispatch(plan)
            if not self.config.overlap:
                assert last is None
                last, self._pending = self._pending, None
        outputs = self.scheduler.take_outputs()
        if last is not None:
            result = self.runner.read(last)
            outputs += self.scheduler.update(last.plan, result.tokens, result.logprobs, result.prompt_logprobs)
        return outputs

    def stats(self) -> EngineStats:
        return self.scheduler.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget cached pages; False while requests hold some."""
        return self.scheduler.reset_prefix_cache()

    def shutdown(self) -> None:
        self._pending = None
        self.runner.close()

    def _warm_up(self, config: EngineConfig, buckets: BucketPlan) -> None:
        if config.warmup == "lazy":
            return
        base, graphs = buckets.keys(), self.runner.graphs
        if config.warmup == "all":
            graphs.compile_all(base, config.use_tqdm_on_load)
            return
        first = buckets.first()
        graphs.compile_all(first, config.use_tqdm_on_load)
        graphs.compile_later([key for key in base if key not in first])


def compile_workers() -> int:
    return max(1, min(8, (os.cpu_count() or 2) - 1))


def compute_dtype(params: Tree) -> jnp.dtype:
    """What the embedding's rows come out as: the dtype of activations and of the cache."""
    return jax.eval_shape(lambda: params["embed"].rows(jnp.zeros((1,), jnp.int32))).dtype


def largest_leaf(params: Tree) -> int:
    """Bytes of the largest array on one device."""
    return max(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(params))


class _Clock:
    """Start-up time by phase."""

    def __init__(self, show: bool) -> None:
        self.show, self.last = show, time.monotonic()
        self.laps: list[tuple[str, float]] = []

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps.append((name, now - self.last))
        self.last = now

    def report(self, limits: EngineLimits) -> None:
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.laps)
        line = (
            f"Ready: {limits.architecture} {limits.dtype}, context {limits.max_model_len}, "
            f"{limits.max_num_seqs} requests at once, {limits.num_pages} pages of {limits.block_size} tokens ({phases})"
        )
        if log.isEnabledFor(logging.INFO):
            log.info(line)
        elif self.show:
            print(line, file=sys.stderr, flush=True)
