"""What every route needs: the engine's front end, the options, the metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse

from vjax.frontend.async_llm import AsyncLLM
from vjax.frontend.inputs import PreparedRequest
from vjax.outputs import RequestOutput
from vjax.sampling_params import SamplingParams
from vjax.serving.errors import ApiError, as_api_error, error_body
from vjax.serving.metrics import Metrics
from vjax.serving.options import ServerOptions
from vjax.tokenizing import Tokenizer

log = logging.getLogger("vjax.serving")
T = TypeVar("T")


@dataclass
class Context:
    """`names`: what clients may call the model, the first is reported; `chat_template` overrides the model's own."""

    llm: AsyncLLM
    options: ServerOptions
    names: list[str]
    metrics: Metrics
    chat_template: str | None = None
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def tokenizer(self) -> Tokenizer:
        if self.llm.tokenizer is None:
            raise ApiError(400, "this server runs without a tokenizer: send token ids.", "prompt")
        return self.llm.tokenizer

    def check_model(self, name: str | None) -> str:
        """The name to report. Raises a 404 for a model that is not served."""
        if name and name not in self.names:
            raise ApiError(404, f"The model `{name}` does not exist.", "model")
        return name or self.name

    def defaults(self) -> SamplingParams:
        """Sampling defaults of the model, or the API's own with `--generation-config vllm`."""
        if self.options.generation_config == "vllm":
            return SamplingParams()
        return self.llm.get_default_sampling_params()

    def cap(self, prepared: PreparedRequest) -> None:
        """Apply the model's own `max_new_tokens` to a request that set no limit."""
        files = self.llm.files
        most = files.generation_config.get("max_new_tokens") if files is not None else None
        if self.options.generation_config == "vllm" or not isinstance(most, int) or most < 1:
            return
        for params in (prepared.params, *(child.params for child in prepared.children)):
            params.max_tokens = min(params.max_tokens or most, most)

    def request_id(self, prefix: str, request: Request, given: str | None) -> str:
        """`prefix-` with the client's id, or a random one. Ends in random characters, so that a repeated id is safe."""
        asked = given or request.headers.get("x-request-id")
        random = uuid.uuid4().hex
        return f"{prefix}-{asked[:128]}-{random[:8]}" if asked else f"{prefix}-{random}"

    async def outputs(self, prepared: PreparedRequest) -> AsyncIterator[RequestOutput]:
        """`AsyncLLM.generate`, measured, with failed requests as exceptions."""
        if self.options.enable_log_requests:
            log.info("request %s: %d prompt tokens", prepared.request_id, len(prepared.prompt_token_ids))
        stream = self.llm.generate(prepared)
        try:
            async for output in self.metrics.watch(prepared, stream):
                if any(choice.finish_reason == "error" for choice in output.outputs):
                    raise ApiError(500, f"request {prepared.request_id} failed in the engine")
                yield output
        finally:
            await stream.aclose()  # type: ignore[attr-defined]


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Await `work`, but cancel it, and with it its engine requests, when the client goes away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watcher = asyncio.ensure_future(work), asyncio.create_task(gone())
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client closed the connection", kind="ClientDisconnected")
        return task.result()
    finally:
        watcher.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def event_stream(chunks: AsyncIterator[dict[str, Any]]) -> StreamingResponse:
    """Server-sent events, ending in `[DONE]`. An error in the middle becomes an event: the status is sent already."""

    async def events() -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield event(chunk)
        except Exception as error:
            yield event(error_body(as_api_error(error)))
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]
        yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def last(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    """The finished output of a request that does not stream."""
    final = None
    async for output in outputs:
        final = output
    assert final is not None
    return final


def usage(prompt_tokens: int, completion_tokens: int, cached: int | None = None) -> dict[str, Any]:
    """OpenAI's usage object; `cached`: prompt tokens found in the prefix cache, if they are to be reported."""
    counts: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return counts
