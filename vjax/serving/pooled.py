"""How requests to a model that encodes run: prepared, measured, and aborted with their client."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import Request

from vjax.errors import RequestError
from vjax.frontend.async_llm import LONG_TEXT
from vjax.frontend.inputs import Prompt
from vjax.frontend.pooling import AbortedError, Pair, PoolingInputs, PreparedPooling
from vjax.outputs import PoolingRequestOutput
from vjax.pooling_params import PoolingParams
from vjax.serving.chat import render
from vjax.serving.errors import ApiError
from vjax.serving.pooling_protocol import InputRequest, PoolingFields
from vjax.serving.service import Service, unless_gone

log = logging.getLogger(__name__)

MOST_NUMBERS = 1 << 24  # of an answer with a vector for each token, which is much longer than its question


def inputs_of(service: Service) -> PoolingInputs:
    assert service.llm.pooling is not None  # the route would not be there
    return service.llm.pooling


async def run_inputs(
    service: Service, request: Request, body: InputRequest, params: PoolingParams, id: str
) -> list[PoolingRequestOutput]:
    """An output for each text or conversation."""
    prompts: list[Any] = []
    if body.messages is not None:
        for messages in body.conversations():
            prompts.append(await render(service, body.model_copy(update={"messages": messages})))
    else:
        prompts = body.inputs()
    add = body.add_special_tokens if body.add_special_tokens is not None else body.messages is None
    param = "messages" if body.messages is not None else "input"
    batch = await prepare(service, prompts, [params] * len(prompts), body, id, param=param, add_special_tokens=add)
    numbers = sum(len(one.prompt_token_ids) for one in batch) * inputs_of(service).pooling.width
    if params.task == "token_embed" and numbers > MOST_NUMBERS:
        raise RequestError(f"the answer would hold {numbers} numbers; at most {MOST_NUMBERS}. Send fewer texts.", param)
    return await run(service, request, batch)


async def prepare(
    service: Service, prompts: Sequence[Prompt | Pair], params: Sequence[PoolingParams], body: PoolingFields, id: str,
    *, param: str, add_special_tokens: bool = True,
) -> list[PreparedPooling]:  # fmt: skip
    """Validated requests; none of them runs if one is bad. Long texts are tokenised in a thread."""
    inputs = inputs_of(service)

    def work() -> list[PreparedPooling]:
        return [
            inputs.process(
                f"{id}-{at}-{uuid.uuid4().hex[:8]}", prompt, one, priority=body.priority, param=param,
                add_special_tokens=add_special_tokens,
            )
            for at, (prompt, one) in enumerate(zip(prompts, params, strict=True))
        ]  # fmt: skip

    if sum(map(_size, prompts)) > LONG_TEXT:
        return await asyncio.to_thread(work)
    return work()


async def run(service: Service, request: Request, batch: Sequence[PreparedPooling]) -> list[PoolingRequestOutput]:
    """What became of each text. Raises `ClientGoneError` when the client leaves first."""

    async def one(prepared: PreparedPooling) -> PoolingRequestOutput:
        await service.unpaused.wait()
        if service.options.enable_log_requests:
            log.info("%s: %d tokens", prepared.request_id, len(prepared.prompt_token_ids))
        reason = "abort"
        service.running.add(prepared.request_id)
        try:
            output = await service.llm.pool(prepared)
            reason = "stop"
            return output
        except AbortedError:
            raise ApiError(503, "the server stopped before the request was done.") from None
        except Exception:
            reason = "error"
            raise
        finally:
            service.running.discard(prepared.request_id)
            _measure(service, prepared, reason)

    async def every() -> list[PoolingRequestOutput]:
        tasks = [asyncio.create_task(one(prepared)) for prepared in batch]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return await unless_gone(request, every())


def usage(service: Service, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    tokens = sum(map(len, prompts))
    details = {"cached_tokens": 0} if service.options.enable_prompt_tokens_details else None
    return {
        "prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens, "prompt_tokens_details": details
    }  # fmt: skip


def head(id: str, model: str) -> dict[str, Any]:
    return {"id": id, "object": "list", "created": int(time.time()), "model": model}


def _measure(service: Service, prepared: PreparedPooling, reason: str) -> None:
    metrics, now = service.metrics, time.monotonic()
    metrics.finished(reason)
    metrics.size("vllm:request_prompt_tokens", len(prepared.prompt_token_ids))
    if reason != "stop":
        return
    metrics.time("vllm:e2e_request_latency_seconds", now - prepared.arrival_time)
    if prepared.scheduled_time is not None:
        metrics.time("vllm:request_queue_time_seconds", prepared.scheduled_time - prepared.arrival_time)
        metrics.time("vllm:request_prefill_time_seconds", now - prepared.scheduled_time)
        metrics.time("vllm:request_inference_time_seconds", now - prepared.scheduled_time)


def _size(prompt: Prompt | Pair) -> int:
    return len(prompt.first) + len(prompt.second) if isinstance(prompt, Pair) else len(prompt)
