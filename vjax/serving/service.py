"""`Service`: what every route needs, and how a request runs: admitted, measured, and aborted with its client."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request

from vjax.errors import RequestError, VjaxError
from vjax.frontend.inputs import PreparedRequest, Prompt
from vjax.outputs import RequestOutput
from vjax.sampling_params import SamplingParams
from vjax.serving.beams import make_beams, run_beams
from vjax.serving.details import fingerprint
from vjax.serving.errors import ApiError
from vjax.serving.formats import Formats
from vjax.serving.metrics import Metrics
from vjax.serving.options import ServerOptions
from vjax.serving.protocol import GenerationRequest
from vjax.serving.responses_store import ResponseStore

if TYPE_CHECKING:
    from vjax.frontend.async_llm import AsyncLLM
    from vjax.tokenizing.tokenizer import Tokenizer

log = logging.getLogger(__name__)

MAX_ID_CHARS = 128
T = TypeVar("T")


class ClientGoneError(VjaxError):
    """The client closed its connection; whatever is answered, nobody reads it."""


class Service:
    """One engine with the server's options. `open` it once the engine has started."""

    def __init__(self, llm: AsyncLLM, options: ServerOptions) -> None:
        """Raises `ModelError` when the chat template cannot be read."""
        self.llm, self.options = llm, options
        self.names = options.served_model_name or [llm.config.model]
        self.created = int(time.time())
        self.chat_template = options.read_chat_template()
        self.metrics = Metrics(self.names[0], llm.stats)
        self.defaults = SamplingParams()
        self.max_new_tokens: int | None = None  # of the model's generation_config.json
        self.fingerprint = ""  # of an open service
        self.formats = Formats()
        self.responses = ResponseStore(options.responses_store)
        self.ready = False
        self.load = 0  # HTTP requests being answered
        self.running: set[str] = set()  # ids of the engine's requests
        self.unpaused = asyncio.Event()  # clear: requests wait before they start
        self.unpaused.set()
        self.profiling = False

    def open(self) -> None:
        """Start to take requests."""
        if self.options.generation_config == "auto":
            self.defaults = self.llm.get_default_sampling_params()
            if self.llm.files is not None:
                self.max_new_tokens = self.llm.files.generation_config.get("max_new_tokens")
        self.formats = Formats.of(self.options, self.llm.tokenizer, self.chat_template)
        self.metrics.open(self.llm.limits)
        self.fingerprint = fingerprint(self)
        self.ready = True

    @property
    def tokenizer(self) -> Tokenizer:
        if self.llm.tokenizer is None:
            raise RequestError("this server runs without a tokenizer: send token ids to /v1/completions.", "model")
        return self.llm.tokenizer

    def check_model(self, name: str | None) -> str:
        """The name to answer with. Raises a 404 for a model that is not served."""
        if not name:
            return self.names[0]
        if name not in self.names:
            raise ApiError(
                404, f"The model `{name}` does not exist. This server has: {', '.join(self.names)}.", "model"
            )
        return name

    def response_id(self, prefix: str, request: Request, given: str | None) -> str:
        name = request.headers.get("x-request-id") or given or uuid.uuid4().hex
        return f"{prefix}-{name[:MAX_ID_CHARS]}"

    async def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        id: str,
        body: GenerationRequest,
        *,
        default_max_tokens: int | None,
        add_special_tokens: bool = True,
    ) -> PreparedRequest:
        """A validated request. `default_max_tokens` holds for one that names no limit, where the context has the room.

        Clients may repeat ids, the engine may not: it gets one of its own.
        """
        interval = max(self.options.stream_interval, body.stream_interval or 1)
        if interval > 1 and body.stream:
            params = params.clone(stream_interval=interval)
        try:
            prepared = await self.llm.prepare(
                prompt,
                params,
                f"{id}-{uuid.uuid4().hex[:8]}",
                priority=body.priority,
                cache_salt=body.cache_salt,
                add_special_tokens=add_special_tokens,
            )
        except RequestError as error:
            raise body.as_named(error) from None
        if params.max_tokens is None and default_max_tokens is not None:
            most = min(default_max_tokens, prepared.params.max_tokens or default_max_tokens)
            prepared.params = prepared.params.clone(max_tokens=most)
            for child in prepared.children:
                child.params = child.params.clone(max_tokens=most)
        if body.use_beam_search:
            make_beams(prepared, body, self.llm.limits.max_logprobs)
        return prepared

    def full(self) -> bool:
        """Whether as many requests wait as may. The engine's own count is as old as its last step."""
        most = self.options.max_num_queued_reqs
        if most is None or not self.ready:
            return False
        return self.load - self.llm.limits.max_num_seqs >= most or self.llm.stats().waiting >= max(most, 1)

    async def run(self, prepared: PreparedRequest) -> AsyncGenerator[RequestOutput, None]:
        """A request's outputs. Closing the generator, or cancelling it, aborts the request."""
        await self.unpaused.wait()
        watch = self.metrics.watch(prepared)
        self.running.add(prepared.request_id)
        if self.options.enable_log_requests:
            log.info("%s: %d prompt tokens, %s", prepared.request_id, len(prepared.prompt_token_ids), prepared.params)
        try:
            source = run_beams(self.llm, prepared, self.running) if prepared.beam else self.llm.generate(prepared)
            async with aclosing(source) as outputs:
                async for output in outputs:
                    watch.update(output)
                    yield output
        finally:
            self.running.discard(prepared.request_id)
            watch.close()

    async def run_all(self, batch: Sequence[PreparedRequest]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """The outputs of several requests as they come, each with its place in the batch."""
        queue: asyncio.Queue[tuple[int, RequestOutput] | BaseException | None] = asyncio.Queue(maxsize=len(batch))

        async def pump(place: int, prepared: PreparedRequest) -> None:
            try:
                async with aclosing(self.run(prepared)) as outputs:
                    async for output in outputs:
                        await queue.put((place, output))
                await queue.put(None)
            except Exception as error:
                await queue.put(error)

        tasks = [asyncio.create_task(pump(place, one)) for place, one in enumerate(batch)]
        left = len(tasks)
        try:
            while left:
                item = await queue.get()
                if item is None:
                    left -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def collect(self, request: Request, batch: Sequence[PreparedRequest]) -> list[RequestOutput]:
        """The final output of each request. Aborts them and raises `ClientGoneError` when the client leaves first."""

        async def last() -> list[RequestOutput]:
            outputs: dict[int, RequestOutput] = {}
            async with aclosing(self.run_all(batch)) as news:
                async for place, output in news:
                    outputs[place] = output
            return [outputs[place] for place in range(len(batch))]

        return await unless_gone(request, last())

    def abort_all(self) -> None:
        """End every running request; each answers with finish_reason `abort`."""
        self.llm.abort(list(self.running))


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. Cancels it and raises `ClientGoneError` when the client leaves first."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError("the client closed the connection.")
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
