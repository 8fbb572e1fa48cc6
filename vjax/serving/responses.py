"""Parts that chat and completion answers share: usage and server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi.responses import Response, StreamingResponse

from vjax.outputs import RequestMetrics, RequestOutput
from vjax.serving.details import timings
from vjax.serving.errors import as_api_error, error_body
from vjax.serving.options import ServerOptions
from vjax.serving.protocol import GenerationRequest
from vjax.serving.service import Service

DONE = b"data: [DONE]\n\n"


@dataclass
class Usage:
    """Counts tokens over the prompts and continuations of one HTTP request."""

    prompt_tokens: dict[int, int] = field(default_factory=dict)  # by place in the batch
    cached_tokens: dict[int, int] = field(default_factory=dict)
    completion_tokens: int = 0
    lengths: dict[tuple[int, int], int] = field(default_factory=dict)  # of continuations, by prompt and index
    times: RequestMetrics | None = None
    reasoning_tokens: int | None = None  # of the completion tokens, if anybody counts them

    def add(self, place: int, output: RequestOutput, hidden: bool = False) -> None:
        """Take in an output that holds new tokens only: a delta, or the final one. `hidden` tokens do not count."""
        self.prompt_tokens[place] = len(output.prompt_token_ids)
        self.cached_tokens[place] = output.num_cached_tokens
        self.times = output.metrics
        for one in output.outputs:
            key = (place, one.index)
            self.lengths[key] = self.lengths.get(key, 0) + len(one.token_ids)
        if not hidden:
            self.completion_tokens += sum(len(one.token_ids) for one in output.outputs)

    def body(self, options: ServerOptions) -> dict[str, Any]:
        prompt = sum(self.prompt_tokens.values())
        details = None
        if options.enable_prompt_tokens_details:
            details = {"cached_tokens": sum(self.cached_tokens.values())}
        body: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt + self.completion_tokens,
            "prompt_tokens_details": details,
        }
        if self.reasoning_tokens is not None:
            body["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return body


def closing(service: Service, usage: Usage) -> dict[str, Any]:
    """The fields at the end of an answer: on its last chunk, or on the whole."""
    fields: dict[str, Any] = {}
    if service.options.fingerprint_mode != "none":
        fields["system_fingerprint"] = service.fingerprint
    if service.options.enable_per_request_metrics and usage.times is not None and len(usage.prompt_tokens) == 1:
        fields["metrics"] = timings(usage.times, max(usage.lengths.values(), default=0))
    return fields


def usage_wanted(request: GenerationRequest, options: ServerOptions) -> tuple[bool, bool]:
    """Whether a stream ends with usage, and whether every chunk bears it."""
    if options.enable_force_include_usage:
        return True, True
    wanted = request.stream_options
    if wanted is None:
        return False, False
    return wanted.include_usage, wanted.include_usage and wanted.continuous_usage_stats


def json_response(body: Any) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def named_events(
    events: AsyncGenerator[dict[str, Any], None], on_error: Callable[[Exception], dict[str, Any]]
) -> StreamingResponse:
    """Server-sent events that bear their `type` as name. An error on the way becomes one more."""

    def line(event: dict[str, Any]) -> bytes:
        return b"event: " + event["type"].encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"

    async def lines() -> AsyncIterator[bytes]:
        try:
            async for event in events:
                yield line(event)
        except Exception as error:
            yield line(on_error(error))
        finally:
            await events.aclose()

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def stream_response(chunks: AsyncGenerator[dict[str, Any], None]) -> StreamingResponse:
    """Server-sent events. An error on the way becomes one event with the error object."""

    async def events() -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield b"data: " + msgspec.json.encode(chunk) + b"\n\n"
        except Exception as error:
            yield b"data: " + msgspec.json.encode(error_body(as_api_error(error))) + b"\n\n"
        finally:
            await chunks.aclose()
        yield DONE

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
