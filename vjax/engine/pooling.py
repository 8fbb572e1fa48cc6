"""The engine of a model that encodes: `PoolRequest`s in, arrays out. A batch runs while the last one is read."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from vjax.config import EngineConfig
from vjax.engine import limits, platform
from vjax.engine.encode import EncodePending, EncodeRunner
from vjax.engine.finish import Finish
from vjax.engine.messages import EngineLimits, EngineOutput, EngineStats, Pooled, PoolingLimits, PoolRequest, Vocabulary
from vjax.engine.pool_queue import PoolBuckets, PoolQueue
from vjax.errors import ModelError, VjaxError
from vjax.loading.load import load_with_config, read_sentence
from vjax.loading.source import find_source
from vjax.models.encoder import Encoder
from vjax.models.pooler_config import PoolerConfig, class_activation, label_names, matryoshka
from vjax.models.spec import Tree
from vjax.pallas_kernels import dispatch
from vjax.parallel.mesh import make_mesh
from vjax.pooling_params import not_cut

log = logging.getLogger(__name__)

SHORT = 64  # tokens: a question


class PoolingEngine:
    """The counterpart of `Engine`, with its methods. One thread calls it."""

    def __init__(self, config: EngineConfig) -> None:
        """Loads the model and compiles the first graphs."""
        started = time.monotonic()
        platform.prepare(config)
        mesh = make_mesh(config.tensor_parallel_size)
        dispatch.choose(config.kernels, devices=mesh.size)
        pooler = PoolerConfig.read(config.pooler_config)
        model, params, hf = load_with_config(config, mesh, encoder=True)
        assert isinstance(model, Encoder)
        self.config, self.model = config, model
        self.max_model_len = _longest(config, model)
        pooling = _pooling_limits(model, hf, pooler)
        buckets = PoolBuckets(self.max_model_len, limits.max_num_batched_tokens(config))
        self.runner = EncodeRunner(model, params, buckets)
        self._queue = PoolQueue(buckets, config.scheduling_policy == "priority")
        self._finish = Finish(
            model.normalize, class_activation(hf, model.labels), pooler.dimensions, pooler.logit_mean,
            pooler.logit_sigma, pooler.use_activation is not False,
        )  # fmt: skip
        self._pending: EncodePending | None = None
        self._aborted: set[str] = set()
        self._stats = EngineStats()
        self._warm_up(buckets)
        self.limits = EngineLimits(
            max_model_len=self.max_model_len,
            vocab_size=model.config.vocab_size,
            max_logprobs=0,
            max_num_seqs=max(rows for rows, _ in buckets.shapes()),
            num_pages=0,
            block_size=config.block_size,
            architecture=model.config.architecture,
            dtype=_dtype(params),
            pooling=pooling,
        )
        log.info(
            "Ready: %s %s, %s, texts of up to %d tokens (%.1f s)", self.limits.architecture, self.limits.dtype,
            " and ".join(pooling.tasks), self.max_model_len, time.monotonic() - started,
        )  # fmt: skip

    def add(self, request: PoolRequest) -> None:
        self._queue.add(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests, at any moment. Unknown ids are ignored."""
        ids = set(request_ids)
        self._queue.abort(ids)
        if self._pending is not None:
            self._aborted |= ids & {request.request_id for request in self._pending.batch}

    @property
    def has_work(self) -> bool:
        return self._pending is not None or len(self._queue) > 0

    def step(self) -> list[EngineOutput]:
        """One turn: start the next batch, then read the last one, which ran meanwhile."""
        last, self._pending = self._pending, None
        aborted, self._aborted = self._aborted, set()
        taken = self._queue.take()
        if taken is not None:
            batch, shape = taken
            self._pending = self.runner.dispatch(batch, shape)
            tokens = sum(len(request.prompt_token_ids) for request in batch)
            self._stats.steps += 1
            self._stats.last_step_tokens = tokens
            self._stats.prompt_tokens += tokens
        if last is None:
            return []
        arrays = self.runner.read(last)
        return [
            self._output(request, values, last.started)
            for request, values in zip(last.batch, arrays, strict=True)
            if request.request_id not in aborted
        ]

    def stats(self) -> EngineStats:
        self._stats.waiting = len(self._queue)
        self._stats.running = 0 if self._pending is None else len(self._pending.batch)
        return self._stats

    def teach(self, vocabulary: Vocabulary) -> None:
        """Nothing here is generated, so no grammar needs it."""

    def reset_prefix_cache(self, preempt: bool = False) -> bool:
        """There is none."""
        return True

    def sleep(self, level: int = 1) -> None:
        raise VjaxError("an engine that encodes does not sleep.")

    def wake_up(self, tags: list[str] | None = None) -> bool:
        return True

    def start_profile(self, folder: str) -> None:
        jax.profiler.start_trace(folder)

    def stop_profile(self) -> None:
        jax.profiler.stop_trace()

    def shutdown(self) -> None:
        self._pending = None
        self.runner.close()

    def _output(self, request: PoolRequest, values: np.ndarray, started: float) -> EngineOutput:
        found = np.ascontiguousarray(self._finish(values, request), np.float32)
        pooled = Pooled(found.shape, found.tobytes())
        return EngineOutput(request.request_id, [], finish_reason="stop", scheduled_time=started, pooled=pooled)

    def _warm_up(self, buckets: PoolBuckets) -> None:
        if self.config.warmup == "lazy":
            return
        shapes, progress = buckets.shapes(), self.config.use_tqdm_on_load
        if self.config.warmup == "all":
            self.runner.compile(shapes, progress)
            return
        longest = buckets.lengths[-1]
        first = list(dict.fromkeys([(1, longest), (1, buckets.length(min(SHORT, longest)))]))
        self.runner.compile(first, progress)
        self.runner.compile_later([shape for shape in shapes if shape not in first])


def _longest(config: EngineConfig, model: Encoder) -> int:
    """Tokens of a text: as the options say, else as Sentence Transformers' files do, else what positions allow."""
    most = model.config.max_position
    if config.max_model_len is not None:
        if config.max_model_len > most:
            raise ModelError(f"max_model_len={config.max_model_len} is more than the model's own {most}.")
        return config.max_model_len
    sentence = read_sentence(find_source(config.model, weights=False).path)
    return min(sentence.max_length or most, most) if sentence is not None else most


def _pooling_limits(model: Encoder, hf: dict, pooler: PoolerConfig) -> PoolingLimits:  # type: ignore[type-arg]
    tasks: list[str] = list(model.tasks)
    if pooler.task is not None:
        if pooler.task not in tasks:
            raise ModelError(f"pooler_config: task must be one of {', '.join(tasks)} for this model.")
        tasks = [pooler.task, *(task for task in tasks if task != pooler.task)]
    cut, sizes = matryoshka(hf)
    if pooler.dimensions is not None:
        reason = not_cut(pooler.dimensions, model.width, cut, sizes)
        if reason:
            raise ModelError(f"pooler_config: {reason}")
    labels = label_names(hf, model.labels) if model.labels else []
    longest = (pooler.max_embed_len or model.config.max_position) if pooler.chunked else None
    return PoolingLimits(
        tasks, model.width, labels, model.normalize, cut, list(sizes), bool(model.label_tokens), longest
    )  # fmt: skip


def _dtype(params: Tree) -> str:
    from vjax.engine.engine import compute_dtype

    return str(jnp.dtype(compute_dtype(params)))
