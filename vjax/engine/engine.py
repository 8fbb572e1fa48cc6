"""The engine: a scheduler and a runner, joined by a loop that keeps the device one step ahead of the host."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, wait

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from vjax.config import EngineConfig
from vjax.engine import limits, platform
from vjax.engine.grammar import Compiler, Grammar, Masks, compiler_of
from vjax.engine.graphs import BucketPlan
from vjax.engine.messages import EngineLimits, EngineOutput, EngineRequest, EngineStats, Vocabulary
from vjax.engine.runner import Pending, Runner
from vjax.engine.scheduler import Scheduler
from vjax.engine.sleep import Sleep, check_level, release_backend, to_host
from vjax.engine.state import StateShape
from vjax.errors import RequestError, VjaxError
from vjax.loading.load import load_model
from vjax.models.model import Model
from vjax.models.spec import Tree
from vjax.pallas_kernels import dispatch
from vjax.parallel.mesh import make_mesh

log = logging.getLogger(__name__)

AWAIT_SECONDS = 0.01


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
        self.config, self.model, self._buckets = config, model, buckets
        self.runner = self._make_runner(params, mesh, shape)
        del params  # the runner's, which gives them up to sleep
        self._sleep: Sleep | None = None
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
        self._compiler: Compiler | None = None
        self._masks: Masks | None = None
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

    def teach(self, vocabulary: Vocabulary) -> None:
        """What grammars need to know of the tokenizer; before the first request that has one."""
        self._compiler, self._masks = compiler_of(vocabulary), Masks(vocabulary)

    def add(self, request: EngineRequest) -> None:
        """Raises `RequestError` for a grammar without a vocabulary, or one too many."""
        self.scheduler.add(request, self._grammar(request))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests, at any moment. Unknown ids are ignored."""
        for request_id in request_ids:
            self.scheduler.abort(request_id)

    @property
    def has_work(self) -> bool:
        """Something that `step` can do. A sleeping engine only has what it read before it fell asleep."""
        if self._sleep is not None:
            return self.scheduler.has_outputs
        return self._pending is not None or self.scheduler.has_work

    def step(self) -> list[EngineOutput]:
        """One turn: start the next step, then read the last one, which ran meanwhile."""
        if self._sleep is not None:
            return self.scheduler.take_outputs()
        last, self._pending = self._pending, None
        plan = self.scheduler.plan()
        if plan is not None and plan.rows:
            self._pending = self.runner.dispatch(plan)
            if not self.config.overlap:
                assert last is None
                self._constrain(self._pending)
                last, self._pending = self._pending, None
        elif last is None and self.scheduler.unready:
            self._await_grammars()
        outputs = self.scheduler.take_outputs()
        if last is not None:
            result = self.runner.read(last)
            outputs += self.scheduler.update(last.plan, result.tokens, result.logprobs, result.prompt_logprobs)
        if self._pending is not None:
            self._constrain(self._pending)
        return outputs

    def _grammar(self, request: EngineRequest) -> Grammar | None:
        spec = request.params.structured_outputs
        if spec is None:
            return None
        if self._compiler is None:
            raise RequestError("this engine was not taught a vocabulary.", spec.field)
        graphs = [] if self.config.warmup == "lazy" else self.runner.prepare_grammars()
        return Grammar(self._compiler.submit(spec), graphs, ignore_eos=request.params.ignore_eos)

    def _constrain(self, pending: Pending) -> None:
        """The step's grammars have taken in all that was sampled before it."""
        if pending.logits is not None:
            assert self._masks is not None
            self.runner.constrain(pending, self._masks)

    def _await_grammars(self) -> None:
        """There is nothing to compute but grammars and their graphs: leave them the processor."""
        awaited = [one for request in self.scheduler.unready if request.grammar for one in request.grammar.awaited]
        wait(awaited, timeout=AWAIT_SECONDS, return_when=FIRST_COMPLETED)

    def stats(self) -> EngineStats:
        stats = self.scheduler.stats()
        stats.sleep_level = self._sleep.level if self._sleep is not None else 0
        return stats

    def reset_prefix_cache(self, preempt: bool = False) -> bool:
        """Forget cached pages; False while requests hold some. `preempt`: have these compute theirs again."""
        if preempt:
            self._settle()
            self.scheduler.preempt_all()
        return self.scheduler.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Give the device's memory back: level 1 moves weights to host memory, level 2 forgets them; the cache is
        forgotten. What runs is computed again from its tokens after `wake_up`.

        The process must be the engine's own: no array or graph of it survives.
        """
        check_level(level)
        if self._sleep is not None:
            raise VjaxError("the engine sleeps already.")
        self.reset_prefix_cache(preempt=True)
        runner = self.runner
        runner.close(wait=True)
        host = to_host(runner.params) if level == 1 else None
        self._shape = runner.shape
        del self.runner, runner
        size = self.config.tensor_parallel_size
        self._sleep = Sleep(
            level, host, lambda: load_model(self.config, make_mesh(size))[1], make_mesh=lambda: make_mesh(size)
        )
        release_backend()

    def wake_up(self, tags: list[str] | None = None) -> bool:
        """Take memory again: "weights", "kv_cache", or both. Whether the engine is awake now."""
        if self._sleep is None:
            return True
        params = self._sleep.wake(tags)
        if params is None:
            return False
        self.runner = self._make_runner(params, make_mesh(self.config.tensor_parallel_size), self._shape)
        self._sleep = None
        self._warm_up(self.config, self._buckets)
        return True

    def start_profile(self, folder: str) -> None:
        """Write what JAX and the device do to a trace in `folder`, until `stop_profile`."""
        jax.profiler.start_trace(folder)

    def stop_profile(self) -> None:
        jax.profiler.stop_trace()

    def _settle(self) -> None:
        """Read the step in flight; what it gave comes out of the next `step`."""
        last, self._pending = self._pending, None
        if last is not None:
            result = self.runner.read(last)
            self.scheduler.put_back(
                self.scheduler.update(last.plan, result.tokens, result.logprobs, result.prompt_logprobs)
            )

    def _make_runner(self, params: Tree, mesh: Mesh, shape: StateShape) -> Runner:
        return Runner(
            self.model,
            params,
            mesh,
            shape,
            self._buckets,
            cache_dtype=compute_dtype(params),
            max_logprobs=self.config.max_logprobs,
            processed_logprobs=self.config.logprobs_mode == "processed_logprobs",
            workers=compile_workers(),
        )

    def shutdown(self) -> None:
        self._pending = None
        if self._compiler is not None:
            self._compiler.close()
        if self._sleep is None:
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
