"""Token ids in, token ids out: `/inference/v1/generate`, and the render routes that make its requests."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from vjax.errors import RequestError
from vjax.frontend.inputs import PreparedRequest
from vjax.outputs import RequestOutput
from vjax.sampling_params import SamplingParams
from vjax.serving.chat import open_chat
from vjax.serving.completions import open_completion
from vjax.serving.dependencies import get_service, read_json
from vjax.serving.logprobs import number, prompt_logprobs
from vjax.serving.protocol import ChatRequest, CompletionRequest, GenerationRequest, Many, StreamOptions
from vjax.serving.responses import Usage, closing, json_response, stream_response, usage_wanted
from vjax.serving.service import Service

router = APIRouter(dependencies=[read_json])


class GenerateRequest(BaseModel):
    model_config = ConfigDict(extra="ignore")

    token_ids: Many[int]
    sampling_params: dict[str, Any] = {}
    model: str | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    stream: bool = False
    stream_options: StreamOptions | None = None
    features: Any = None


@router.post("/v1/chat/completions/render")
async def render_chat(body: ChatRequest, request: Request) -> Response:
    """The generate request that a chat is: template, tokens and parameters, and nothing computed."""
    service = get_service(request)
    _no_beams(body)
    chat, prepared = await open_chat(service, body, service.response_id("chatcmpl", request, body.request_id))
    return json_response(_rendered(chat.id, chat.model, prepared, body))


@router.post("/v1/completions/render")
async def render_completion(body: CompletionRequest, request: Request) -> Response:
    """As for chats: one generate request for each prompt."""
    _no_beams(body)
    completion, batch = await open_completion(body, request)
    rendered = [
        _rendered(f"{completion.id}-{at}", completion.model, prepared, body) for at, prepared in enumerate(batch)
    ]
    return json_response(rendered)


@router.post("/inference/v1/generate")
async def generate(body: GenerateRequest, request: Request) -> Response:
    service = get_service(request)
    model = service.check_model(body.model)
    if body.features is not None:
        raise RequestError("features are not supported: this model reads tokens only.", "features")
    kind: Any = "delta" if body.stream else "final_only"
    params = read_params(body.sampling_params).clone(output_kind=kind, detokenize=False)
    id = service.response_id("generate", request, body.request_id)
    common = GenerationRequest(
        priority=body.priority, cache_salt=body.cache_salt, stream=body.stream, stream_interval=params.stream_interval
    )
    prepared = await service.prepare(body.token_ids, params, id, common, default_max_tokens=None)
    head = {"request_id": id, "model": model}
    if body.stream:
        common.stream_options = body.stream_options
        return stream_response(_chunks(service, prepared, common, head))
    (output,) = await service.collect(request, [prepared])
    usage = Usage()
    usage.add(0, output)
    return json_response({**head, **_body(output), "usage": usage.body(service.options), **closing(service, usage)})


def read_params(values: dict[str, Any]) -> SamplingParams:
    """Raises `RequestError` naming the parameter that is not known, of another type or out of range."""
    if unknown := sorted(set(values) - set(SamplingParams.__struct_fields__)):
        raise RequestError(f"unknown sampling parameter {unknown[0]!r}.", f"sampling_params.{unknown[0]}")
    if values.get("stop"):
        raise RequestError("stop strings need text: give stop_token_ids.", "sampling_params.stop")
    try:
        return msgspec.convert(values, SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, RequestError):
            raise RequestError(str(cause), f"sampling_params.{cause.param}") from None
        raise RequestError(f"sampling_params: {error}", "sampling_params") from None


async def _chunks(
    service: Service, prepared: PreparedRequest, body: GenerationRequest, head: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    final_usage, every_usage = usage_wanted(body, service.options)
    usage = Usage()
    async with aclosing(service.run(prepared)) as outputs:
        async for output in outputs:
            usage.add(0, output)
            chunk = {**head, **_body(output)}
            yield {**chunk, "usage": usage.body(service.options)} if every_usage else chunk
    if final_usage:
        yield {**head, "choices": [], "usage": usage.body(service.options), **closing(service, usage)}


def _body(output: RequestOutput) -> dict[str, Any]:
    choices = [
        {
            "index": one.index,
            "token_ids": one.token_ids,
            "logprobs": None if one.logprobs is None else [_row(row) for row in one.logprobs],
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
        }
        for one in output.outputs
    ]
    return {"choices": choices, "prompt_logprobs": prompt_logprobs(output.prompt_logprobs)}


def _row(row: Any) -> dict[str, Any]:
    """The token at this place and its logprob, then those of the likeliest or of those that were named."""
    (token, entry), *_ = row.items()
    top = [{"token_id": id, "logprob": number(one), "rank": one.rank} for id, one in row.items()]
    return {"token_id": token, "logprob": number(entry), "rank": entry.rank, "top_logprobs": top}


def _rendered(id: str, model: str, prepared: PreparedRequest, body: GenerationRequest) -> dict[str, Any]:
    params = msgspec.to_builtins(prepared.params)
    # What needs text stays with whoever has it.
    for name in ("output_kind", "stop", "truncate_prompt_tokens", "truncation_side"):
        params.pop(name, None)
    return {
        "request_id": id,
        "model": model,
        "token_ids": prepared.prompt_token_ids,
        "sampling_params": params,
        "cache_salt": body.cache_salt,
        "priority": body.priority,
        "stream": body.stream,
    }


def _no_beams(body: GenerationRequest) -> None:
    if body.use_beam_search:
        raise RequestError("a beam search is many generate requests; it cannot be rendered.", "use_beam_search")
