"""`/v1/completions`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from vjax.errors import RequestError
from vjax.frontend.inputs import PreparedRequest
from vjax.outputs import CompletionOutput, LogprobDict, RequestOutput
from vjax.sampling_params import SamplingParams
from vjax.serving.context import Context, event_stream, last, usage, while_connected
from vjax.serving.logprobs import completion_logprobs, prompt_logprobs
from vjax.serving.protocol import CompletionRequest

MAX_PROMPTS = 1024


def routes(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        model = context.check_model(body.model)
        body.refuse_unsupported()
        request_id = context.request_id("cmpl", request, body.request_id)
        prepared = await prepare(context, body, request_id)
        answer = Answer(context, body, prepared, model, request_id)
        if body.stream:
            return event_stream(answer.chunks())
        work = asyncio.gather(*(last(context.outputs(one)) for one in prepared))
        return JSONResponse(answer.whole(await while_connected(request, work)))

    return router


async def prepare(context: Context, body: CompletionRequest, request_id: str) -> list[PreparedRequest]:
    """One request for each prompt; all are checked before any starts."""
    prompts = split_prompts(body.prompt)
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(f"prompt holds {len(prompts)} prompts, at most {MAX_PROMPTS} are taken.", "prompt")
    limit = body.max_tokens
    if body.echo and limit == 0:
        limit = 1  # one token is computed and not shown
    changes: dict[str, Any] = {"logprobs": body.logprobs}
    if "max_tokens" not in body.model_fields_set:
        limit = 16
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None and not body.stream:
        changes["prompt_logprobs"] = body.logprobs
    params: SamplingParams = body.sampling(context.defaults(), max_tokens=limit, **changes)
    return [
        await context.llm.prepare(
            prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt},
            params.clone(),
            f"{request_id}-{i}" if len(prompts) > 1 else request_id,
            priority=body.priority,
            cache_salt=body.cache_salt,
            add_special_tokens=body.add_special_tokens,
        )
        for i, prompt in enumerate(prompts)
    ]


def split_prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """A text, a list of texts, ids, or a list of id lists, as a list of prompts."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("the prompt is empty.", "prompt")
    if isinstance(prompt[0], int):
        return [list(prompt)]
    return list(prompt)


class Answer:
    """Shapes the outputs of one HTTP request; choice `i` of prompt `p` has the index `p * n + i`."""

    def __init__(
        self, context: Context, body: CompletionRequest, prepared: list[PreparedRequest], model: str, request_id: str
    ) -> None:
        self.context, self.body, self.prepared = context, body, prepared
        self.head = {"id": request_id, "object": "text_completion", "created": int(time.time()), "model": model}
        asked = body.return_tokens_as_token_ids
        self.as_ids = context.options.return_tokens_as_token_ids if asked is None else asked
        self.hidden = body.echo and body.max_tokens == 0
        self.n = prepared[0].params.n
        self.offsets: dict[int, int] = {}  # characters sent, by choice

    def whole(self, finals: list[RequestOutput]) -> dict[str, Any]:
        choices = []
        generated = 0
        for p, final in enumerate(finals):
            for choice in final.outputs:
                generated += 0 if self.hidden else len(choice.token_ids)
                choices.append(self._choice(p, final, choice))
        answer = {**self.head, "choices": choices}
        return {**answer, "usage": self._usage(generated, sum(final.num_cached_tokens for final in finals))}

    def _choice(self, p: int, final: RequestOutput, choice: CompletionOutput) -> dict[str, Any]:
        prompt = self._prompt_text(p) if self.body.echo else ""
        text = prompt + ("" if self.hidden else choice.text)
        shown: dict[str, Any] = {
            "index": p * self.n + choice.index,
            "text": text,
            "logprobs": self._whole_logprobs(final, choice, len(prompt)),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.body.prompt_logprobs is not None:
            shown["prompt_logprobs"] = prompt_logprobs(final.prompt_logprobs)
        if self.body.return_token_ids:
            shown |= {"token_ids": choice.token_ids, "prompt_token_ids": final.prompt_token_ids}
        return shown

    def _whole_logprobs(self, final: RequestOutput, choice: CompletionOutput, offset: int) -> dict[str, Any] | None:
        if self.body.logprobs is None:
            return None
        tokens: list[int] = [] if self.hidden else list(choice.token_ids)
        entries: list[LogprobDict | None] = [] if self.hidden else list(choice.logprobs or [])
        if self.body.echo and final.prompt_logprobs is not None:
            tokens = list(final.prompt_token_ids) + tokens
            entries = list(final.prompt_logprobs) + entries
            offset = 0
        return completion_logprobs(tokens, entries, self.body.logprobs, offset, self.as_ids)

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        options = self.body.stream_options
        force = self.context.options.enable_force_include_usage
        with_usage = force or (options is not None and options.include_usage)
        always = force or (options is not None and options.continuous_usage_stats)
        generated = 0
        cached: dict[int, int] = {}
        outputs = merge([self.context.outputs(one) for one in self.prepared])
        try:
            if self.body.echo:
                for index in range(len(self.prepared) * self.n):
                    yield {**self.head, "choices": [self._echo(index)]}
            async for p, output in outputs:
                cached[p] = output.num_cached_tokens
                for choice in output.outputs:
                    if not (choice.text or choice.token_ids or choice.finish_reason):
                        continue
                    generated += 0 if self.hidden else len(choice.token_ids)
                    chunk = {**self.head, "choices": [self._delta(p, output, choice)]}
                    yield {**chunk, "usage": self._usage(generated, sum(cached.values()))} if always else chunk
        finally:
            await outputs.aclose()  # type: ignore[attr-defined]
        if with_usage:
            yield {**self.head, "choices": [], "usage": self._usage(generated, sum(cached.values()))}

    def _echo(self, index: int) -> dict[str, Any]:
        text = self._prompt_text(index // self.n)
        self.offsets[index] = len(text)
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None, "stop_reason": None}

    def _delta(self, p: int, output: RequestOutput, choice: CompletionOutput) -> dict[str, Any]:
        index = p * self.n + choice.index
        text = "" if self.hidden else choice.text
        logprobs = None
        if self.body.logprobs is not None and not self.hidden:
            offset = self.offsets.get(index, 0)
            entries: list[LogprobDict | None] = list(choice.logprobs or [])
            logprobs = completion_logprobs(choice.token_ids, entries, self.body.logprobs, offset, self.as_ids)
        self.offsets[index] = self.offsets.get(index, 0) + len(text)
        shown: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.body.return_token_ids:
            shown["token_ids"] = choice.token_ids
        return shown

    def _prompt_text(self, p: int) -> str:
        one = self.prepared[p]
        if one.prompt is not None:
            return one.prompt
        return self.context.tokenizer.decode(one.prompt_token_ids, skip_special_tokens=False)

    def _usage(self, generated: int, cached: int) -> dict[str, Any]:
        prompt = sum(len(one.prompt_token_ids) for one in self.prepared)
        return usage(prompt, generated, cached if self.context.options.enable_prompt_tokens_details else None)


async def merge(streams: list[AsyncIterator[RequestOutput]]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """Outputs of several requests as they come, with the number of their stream."""
    pending = {asyncio.ensure_future(anext(stream)): i for i, stream in enumerate(streams)}  # type: ignore[arg-type]
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                i = pending.pop(task)
                try:
                    output = task.result()
                except StopAsyncIteration:
                    continue
                yield i, output
                pending[asyncio.ensure_future(anext(streams[i]))] = i  # type: ignore[arg-type]
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
