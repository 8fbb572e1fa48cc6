"""`AsyncLLM`: an engine in its own process, behind an asyncio interface. The HTTP server stands on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING

from vjax.config import EngineConfig
from vjax.engine.messages import EngineLimits, EngineStats
from vjax.engine.process import ENGINE, EngineProcess
from vjax.errors import EngineDeadError, VjaxError
from vjax.frontend.files import FrontendFiles
from vjax.frontend.inputs import InputProcessor, PreparedRequest, Prompt
from vjax.frontend.labels import with_label_ids
from vjax.frontend.outputs import OutputProcessor
from vjax.frontend.pooling import PoolingFutures, PoolingInputs, PreparedPooling, as_array
from vjax.frontend.stream import Stream
from vjax.loading.source import find_source
from vjax.outputs import PoolingRequestOutput, RequestOutput
from vjax.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vjax.tokenizing.tokenizer import Tokenizer

log = logging.getLogger(__name__)

LONG_TEXT = 2048  # characters from which tokenising would hold up the event loop


class AsyncLLM:
    """Serves requests concurrently. Every method belongs to the event loop that called `start`.

    >>> llm = AsyncLLM(EngineConfig(model="smollm2-demo"))
    >>> await llm.start()
    >>> async for output in llm.generate("Hello", SamplingParams(output_kind="delta"), "request-1"):
    ...     print(output.outputs[0].text, end="")
    >>> await llm.shutdown()
    """

    def __init__(self, config: EngineConfig, *, engine: str = ENGINE, files: FrontendFiles | None = None) -> None:
        """Starts nothing. `engine` names what the child process calls with `config`, as `module:attribute`;
        `files` replaces the tokenizer and defaults that are read from the model otherwise."""
        self.config = config
        self.files = files
        self.process = EngineProcess(config, engine)
        self._inputs: InputProcessor | None = None
        self._outputs: OutputProcessor | None = None
        self.pooling: PoolingInputs | None = None  # after `start`, of a model that encodes
        self._pools = PoolingFutures()
        self._streams: dict[str, Stream] = {}
        self._pump: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._dead = asyncio.Event()
        self._dead_error: EngineDeadError | None = None
        self._closing = False
        self._taught = False  # the engine knows the vocabulary

    async def start(self) -> None:
        """Start the process and wait until it can serve. Raises what went wrong there (`ModelError`,
        `CheckpointError`, `CapacityError`, else `EngineDeadError`); nothing is left running then."""
        if self.files is None:  # a registered model must not be fetched by both processes at once
            await asyncio.to_thread(find_source, self.config.model, weights=False)
            self.config = self.process.config = await asyncio.to_thread(with_label_ids, self.config)
        loading = asyncio.create_task(self.process.start())
        try:
            if self.files is None:
                self.files = await asyncio.to_thread(FrontendFiles.load, self.config)
            limits = await loading
        except BaseException:
            loading.cancel()
            await self.process.stop(timeout=0)
            raise
        self._inputs = InputProcessor(
            self.files.tokenizer, limits, eos_token_ids=self.files.eos_token_ids, strict_length=True
        )
        self._outputs = OutputProcessor(self.files.tokenizer)
        if limits.pooling is not None:
            self.pooling = PoolingInputs(self.files.tokenizer, limits, lower_case=self.files.lower_case)
        self._pump = asyncio.create_task(self._run(), name="vjax-outputs")

    @property
    def limits(self) -> EngineLimits:
        """What the engine can do. After `start` only."""
        if self._inputs is None:
            raise RuntimeError("AsyncLLM is not started: `await llm.start()` first.")
        return self._inputs.limits

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None with `skip_tokenizer_init`."""
        return None if self.files is None else self.files.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """A fresh copy of the model's own defaults (its generation_config.json)."""
        return SamplingParams() if self.files is None else self.files.default_sampling_params()

    @property
    def num_inflight(self) -> int:
        """Requests that are neither finished nor aborted."""
        return len(self._streams) + len(self._pools)

    @property
    def is_dead(self) -> bool:
        """The engine's process ended without being asked to. Nothing more can be served."""
        return self._dead_error is not None

    errored = is_dead

    @property
    def dead_error(self) -> EngineDeadError | None:
        return self._dead_error

    async def wait_dead(self) -> EngineDeadError:
        """Returns when the engine dies; does not return after an orderly `shutdown`."""
        await self._dead.wait()
        assert self._dead_error is not None
        return self._dead_error

    def stats(self) -> EngineStats:
        """The engine's gauges and counters as of its last turn. Costs nothing."""
        return self.process.stats

    async def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        prompt_text: str | None = None,
        add_special_tokens: bool = True,
    ) -> PreparedRequest:
        """Tokenise and validate without starting anything, so that a server can refuse before it answers. Hand the
        result to `generate`. Long text is tokenised in a thread. Raises `RequestError` naming the field."""
        inputs = self._ready()
        if params.structured_outputs is not None:
            await inputs.grammars.check_async(params.structured_outputs)

        def work() -> PreparedRequest:
            return inputs.process(
                request_id,
                prompt,
                params,
                priority=priority,
                cache_salt=cache_salt,
                prompt_text=prompt_text,
                add_special_tokens=add_special_tokens,
            )

        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        if isinstance(text, str) and len(text) > LONG_TEXT:
            return await asyncio.to_thread(work)
        return work()

    async def generate(
        self,
        prompt: Prompt | PreparedRequest,
        params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        prompt_text: str | None = None,
        add_special_tokens: bool = True,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The request's outputs as they come, by `params.output_kind`; the last one has `finished` set.

        An async generator: it starts, and raises, at the first `anext`. Ending it early (cancelling the task,
        `aclose`) aborts the request in the engine. A consumer that falls behind gets several steps in one output.

        `prompt` is text, ids, a mapping, or what `prepare` returned (then the other arguments are ignored).
        Raises `RequestError` for a bad request or an id that is in use, `EngineDeadError`, or `VjaxError` when the
        engine failed this request.
        """
        if not isinstance(prompt, PreparedRequest):
            if params is None or request_id is None:
                raise TypeError("generate() needs params and request_id unless the prompt is a PreparedRequest.")
            prompt = await self.prepare(
                prompt,
                params,
                request_id,
                priority=priority,
                cache_salt=cache_salt,
                prompt_text=prompt_text,
                add_special_tokens=add_special_tokens,
            )
        stream = self._open(prompt)
        try:
            while True:
                output = await stream.get()
                yield output
                if output.finished:
                    return
        finally:
            if self._streams.get(prompt.request_id) is stream:
                self._abort(prompt.request_id)

    async def pool(self, request: PreparedPooling) -> PoolingRequestOutput:
        """What a model that encodes makes of a text that its `pooling` prepared. Cancelling it aborts the request.

        Raises `EngineDeadError`, `VjaxError` when the engine failed this request or it was aborted."""
        self._ready()
        ids = [piece.request_id for piece in request.pieces]
        futures = self._pools.open(request.pieces)
        self._idle.clear()
        self.process.pool(request.pieces)
        try:
            outputs = await asyncio.gather(*futures)
        finally:
            self.process.abort(self._pools.forget(ids))
            self._settle()
        request.scheduled_time = outputs[0].scheduled_time
        return request.output([as_array(output.pooled) for output in outputs if output.pooled is not None])

    def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; whoever iterates over one gets a last output with finish_reason `abort`. Unknown ids are
        ignored."""
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            self._abort(one)
            self.process.abort(self._pools.abort(one))

    async def reset_prefix_cache(self, preempt: bool = False) -> bool:
        """Forget cached pages; False while requests hold some. `preempt`: have these compute theirs again. Raises
        `EngineDeadError`."""
        return bool(await self.process.call("reset_prefix_cache", preempt))

    async def sleep(self, level: int = 1) -> None:
        """Give the device's memory back: level 1 keeps the weights in host memory, level 2 reads them again to wake
        up. What runs stops until then, and is computed again. Raises `VjaxError`."""
        await self.process.call("sleep", level)

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        """Take memory for "weights", "kv_cache" or both. Whether the engine is awake now."""
        return bool(await self.process.call("wake_up", tags))

    async def start_profile(self, folder: str) -> None:
        """Trace the engine into `folder`."""
        await self.process.call("start_profile", folder)

    async def stop_profile(self) -> None:
        await self.process.call("stop_profile")

    async def wait_idle(self) -> None:
        """Until no request is open, or the engine is dead."""
        waits = [asyncio.create_task(event.wait()) for event in (self._idle, self._dead)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def shutdown(self, drain_timeout: float = 0.0) -> None:
        """Take no more requests, let open ones finish for `drain_timeout` seconds, abort the rest, end the process.
        May be called at any time, and twice."""
        self._closing = True
        if self.num_inflight and drain_timeout > 0 and not self.is_dead:
            waits = [asyncio.create_task(event.wait()) for event in (self._idle, self._dead)]
            await asyncio.wait(waits, timeout=drain_timeout, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        self.abort([*self._streams, *self._pools.ids()])
        await self.process.stop()
        if self._pump is not None:
            await asyncio.wait([self._pump])

    def _ready(self) -> InputProcessor:
        if self._dead_error is not None:
            raise self._dead_error
        if self._closing:
            raise EngineDeadError("the engine is shutting down.")
        if self._inputs is None:
            raise RuntimeError("AsyncLLM is not started: `await llm.start()` first.")
        return self._inputs

    def _open(self, request: PreparedRequest) -> Stream:
        self._ready()
        assert self._outputs is not None
        self._outputs.add(request)  # refuses an id in use
        stream = self._streams[request.request_id] = Stream(delta=request.params.output_kind == "delta")
        self._idle.clear()
        if request.params.structured_outputs is not None and not self._taught:
            assert self._inputs is not None
            self.process.teach(self._inputs.grammars.vocabulary)
            self._taught = True
        self.process.add(request.children)
        return stream

    def _abort(self, request_id: str) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is None:
            return
        assert self._outputs is not None
        engine_ids, last = self._outputs.abort(request_id)
        self.process.abort(engine_ids)
        if last is not None:
            stream.put(last)
        self._settle()

    async def _run(self) -> None:
        """Hands the engine's outputs to their consumers until the process ends."""
        assert self._outputs is not None
        try:
            async for outputs in self.process.outputs():
                news = self._outputs.process(self._pools.settle(outputs))
                for request_id, error in news.errors.items():
                    self._fail(request_id, VjaxError(f"request {request_id} failed in the engine: {error}"))
                for output in news.outputs:
                    self._deliver(output)
                if news.aborts:
                    self.process.abort(news.aborts)
        except EngineDeadError as error:
            self._die(error)
        except Exception as error:
            log.exception("the output loop failed")
            self._die(EngineDeadError(f"the front end failed: {type(error).__name__}: {error}"))
            await self.process.stop(timeout=0)

    def _deliver(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return
        stream.put(output)
        if output.finished:
            del self._streams[output.request_id]
            self._settle()

    def _fail(self, request_id: str, error: VjaxError) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.fail(error)
            self._settle()

    def _settle(self) -> None:
        if not self.num_inflight:
            self._idle.set()

    def _die(self, error: EngineDeadError) -> None:
        self._dead_error = error
        for request_id in list(self._streams):
            self._fail(request_id, error)
        self._pools.fail(error)
        self._dead.set()
