"""`/v1/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from vjax.errors import RequestError
from vjax.frontend.inputs import PreparedRequest
from vjax.outputs import CompletionOutput, LogprobDict, RequestOutput
from vjax.serving.dependencies import get_service, read_json
from vjax.serving.details import keep_best
from vjax.serving.logprobs import completion_logprobs, prompt_logprobs
from vjax.serving.protocol import CompletionRequest
from vjax.serving.responses import Usage, closing, json_response, stream_response, usage_wanted
from vjax.serving.service import Service

router = APIRouter(dependencies=[read_json])

MAX_PROMPTS = 1024
DEFAULT_MAX_TOKENS = 16


@router.post("/v1/completions")
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    completion, batch = await open_completion(body, request)
    if body.stream:
        return stream_response(completion.chunks(batch))
    return json_response(await completion.answer(request, batch))


async def open_completion(body: CompletionRequest, request: Request) -> tuple[Completion, list[PreparedRequest]]:
    """A completion that passed every check, and its engine requests."""
    service = get_service(request)
    model = service.check_model(body.model)
    body.refuse_unsupported()
    completion = Completion(service, body, model, service.response_id("cmpl", request, body.request_id))
    return completion, await completion.prepare()


def split_prompts(prompt: Any) -> list[str | list[int]]:
    """One prompt or many, as text or as ids: always a list of prompts."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("the prompt is empty.", "prompt")
    prompts = [prompt] if isinstance(prompt[0], int) else list(prompt)
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(f"at most {MAX_PROMPTS} prompts in a request, got {len(prompts)}.", "prompt")
    return prompts


class Completion:
    """One HTTP request: `n` continuations of each of its prompts."""

    def __init__(self, service: Service, body: CompletionRequest, model: str, id: str) -> None:
        self.service, self.body, self.model, self.id = service, body, model, id
        self.created = int(time.time())
        self.hidden = body.echo and body.max_tokens == 0  # only the prompt is wanted; a token is computed regardless
        self.as_ids = service.options.return_tokens_as_token_ids
        if body.return_tokens_as_token_ids is not None:
            self.as_ids = body.return_tokens_as_token_ids

    async def prepare(self) -> list[PreparedRequest]:
        body = self.body
        changes: dict[str, Any] = {"logprobs": body.logprobs, "max_tokens": 1 if self.hidden else body.max_tokens}
        if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
            changes["prompt_logprobs"] = body.logprobs
        if body.best_of is not None and body.best_of > (body.n or 1):
            changes |= {"n": body.best_of, "logprobs": body.logprobs or 0}
        params = body.sampling(self.service.defaults, **changes)
        return [
            await self.service.prepare(
                prompt,
                params,
                f"{self.id}-{place}",
                body,
                default_max_tokens=DEFAULT_MAX_TOKENS,
                add_special_tokens=body.add_special_tokens,
            )
            for place, prompt in enumerate(split_prompts(body.prompt))
        ]

    async def answer(self, request: Request, batch: list[PreparedRequest]) -> dict[str, Any]:
        outputs = await self.service.collect(request, batch)
        usage, choices = Usage(), []
        for place, output in enumerate(outputs):
            usage.add(place, output, self.hidden)
            if self.body.best_of is not None:
                keep_best(output, self.body.n or 1)
            for one in output.outputs:
                choice = self._choice(place, output, one, first=True, offset=0)
                choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
                choices.append(choice)
        end = closing(self.service, usage)
        return {**self._head(), "choices": choices, "usage": usage.body(self.service.options), **end}

    async def chunks(self, batch: list[PreparedRequest]) -> AsyncGenerator[dict[str, Any], None]:
        final_usage, every_usage = usage_wanted(self.body, self.service.options)
        usage, head = Usage(), self._head()
        offsets: dict[int, int] = {}  # characters sent of each choice
        left = sum(prepared.params.n for prepared in batch)
        echoes: dict[int, list[LogprobDict | None] | None] = {}  # prompt logprobs come with the first output only
        async with aclosing(self.service.run_all(batch)) as news:
            async for place, output in news:
                usage.add(place, output, self.hidden)
                if output.prompt_logprobs is not None:
                    echoes[place] = output.prompt_logprobs
                output.prompt_logprobs = echoes.get(place)
                for one in output.outputs:
                    index = self._index(place, one)
                    first = index not in offsets
                    if not (first or one.text or one.finish_reason or one.token_ids):
                        continue
                    choice = self._choice(place, output, one, first=first, offset=offsets.get(index, 0))
                    offsets[index] = offsets.get(index, 0) + len(choice["text"])
                    chunk = {**head, "choices": [choice]}
                    if every_usage:
                        chunk["usage"] = usage.body(self.service.options)
                    left -= one.finish_reason is not None
                    if not left and not final_usage:
                        chunk |= closing(self.service, usage)
                    yield chunk
        if final_usage:
            end = closing(self.service, usage)
            yield {**head, "choices": [], "usage": usage.body(self.service.options), **end}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}

    def _index(self, place: int, one: CompletionOutput) -> int:
        return place * (self.body.n or 1) + one.index

    def _choice(
        self, place: int, output: RequestOutput, one: CompletionOutput, *, first: bool, offset: int
    ) -> dict[str, Any]:
        echo = self.body.echo and first
        text = "" if self.hidden else one.text
        choice: dict[str, Any] = {
            "index": self._index(place, one),
            "text": self._prompt_text(output) + text if echo else text,
            "logprobs": self._logprobs(output, one, echo, offset),
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
        }
        if self.body.return_token_ids:
            choice["token_ids"] = [] if self.hidden else one.token_ids
            choice["prompt_token_ids"] = output.prompt_token_ids if first else None
        return choice

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is None:
            return self.service.tokenizer.decode(output.prompt_token_ids)
        return output.prompt

    def _logprobs(self, output: RequestOutput, one: CompletionOutput, echo: bool, offset: int) -> dict[str, Any] | None:
        if self.body.logprobs is None and not self.body.logprob_token_ids:
            return None
        tokens: list[int] = []
        rows: list[LogprobDict | None] = []
        if echo and output.prompt_logprobs is not None:
            tokens, rows = list(output.prompt_token_ids), list(output.prompt_logprobs)
        elif echo:
            offset += len(self._prompt_text(output))
        if not self.hidden:
            tokens, rows = tokens + one.token_ids, rows + list(one.logprobs or [])
        return completion_logprobs(tokens, rows, offset, self.service.llm.tokenizer, self.as_ids)
