"""`/v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from vjax.errors import RequestError
from vjax.frontend.inputs import PreparedRequest
from vjax.outputs import CompletionOutput, RequestOutput
from vjax.serving.answers import Answer
from vjax.serving.dependencies import get_service, read_json
from vjax.serving.formats import AnswerPlan
from vjax.serving.logprobs import chat_logprobs, prompt_logprobs
from vjax.serving.protocol import ChatRequest
from vjax.serving.rendering import render, template_variables
from vjax.serving.responses import Usage, closing, json_response, stream_response, usage_wanted
from vjax.serving.service import Service

router = APIRouter(dependencies=[read_json])


@router.post("/v1/chat/completions")
async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
    service = get_service(request)
    chat, prepared = await open_chat(service, body, service.response_id("chatcmpl", request, body.request_id))
    if body.stream:
        return stream_response(chat.chunks(prepared))
    return json_response(await chat.answer(request, prepared))


async def open_chat(
    service: Service, body: ChatRequest, id: str, most: int | None = None
) -> tuple[Chat, PreparedRequest]:
    """A chat that passed every check, and its engine request. The other dialects come this way too: `most` bounds the
    output where they say how much that may be, not how much it must have room for."""
    model = service.check_model(body.model)
    body.refuse_unsupported()
    plan = AnswerPlan(service.formats, body)
    chat = Chat(service, body, model, id, plan, most)
    return chat, await chat.prepare(await render(service, body))


class Chat:
    """One request on its way to answers."""

    def __init__(
        self, service: Service, body: ChatRequest, model: str, id: str, plan: AnswerPlan, most: int | None = None
    ) -> None:
        self.most = service.max_new_tokens if most is None else most
        self.service, self.body, self.model, self.id, self.plan = service, body, model, id, plan
        self.created = int(time.time())
        last = body.messages[-1]
        self.role = service.options.response_role if not body.continue_final_message else last["role"]
        self.echo = last["content"] if body.echo and isinstance(last.get("content"), str) else ""
        self.as_ids = service.options.return_tokens_as_token_ids
        if body.return_tokens_as_token_ids is not None:
            self.as_ids = body.return_tokens_as_token_ids

    async def prepare(self, prompt: str) -> PreparedRequest:
        body, plan = self.body, self.plan
        plan.begin(prompt, template_variables(body))
        wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        params = body.sampling(self.service.defaults, max_tokens=wanted, logprobs=logprobs)
        try:
            prepared = await self.service.prepare(
                prompt,
                params.clone(structured_outputs=plan.form()),
                self.id,
                body,
                default_max_tokens=self.most,
                add_special_tokens=body.add_special_tokens,
            )
        except RequestError as error:
            raise plan.refusal(error) from None
        if plan.parser() is not None:
            prepared.shown_special_ids = frozenset(self.service.formats.shown)
        return prepared

    async def answer(self, request: Request, prepared: PreparedRequest) -> dict[str, Any]:
        (output,) = await self.service.collect(request, [prepared])
        usage = Usage()
        usage.add(0, output)
        choices, usage.reasoning_tokens = self.choices(output)
        return {
            **self.head("chat.completion"),
            "choices": choices,
            "usage": usage.body(self.service.options),
            "prompt_logprobs": prompt_logprobs(output.prompt_logprobs),
            **self._prompt_ids(prepared),
            **({"prompt_text": prepared.prompt} if self.body.return_prompt_text else {}),
            **closing(self.service, usage),
        }

    def choices(self, output: RequestOutput) -> tuple[list[dict[str, Any]], int | None]:
        """What a finished request answers, and how many tokens of that are reasoning, if that is known."""
        choices, answers = [], []
        for one in output.outputs:
            answer = Answer(self.plan)
            message = answer.message(one, self.role, self.echo)
            choices.append(self._choice(answer.ended(one), "message", message))
            answers.append(answer)
        return choices, self._reasoning_tokens(answers)

    async def chunks(self, prepared: PreparedRequest) -> AsyncGenerator[dict[str, Any], None]:
        final_usage, every_usage = usage_wanted(self.body, self.service.options)
        usage, head = Usage(), self.head("chat.completion.chunk")
        usage.prompt_tokens[0] = len(prepared.prompt_token_ids)

        def chunk(choices: list[dict[str, Any]], with_usage: bool = every_usage) -> dict[str, Any]:
            body = {**head, "choices": choices}
            return {**body, "usage": usage.body(self.service.options)} if with_usage else body

        answers = [Answer(self.plan) for _ in range(prepared.params.n)]
        async with aclosing(self.service.run(prepared)) as outputs:
            started = False
            async for output in outputs:
                if not started:
                    started = True
                    for index in range(prepared.params.n):
                        yield {**chunk([self._first(index)]), **self._prompt_ids(prepared)}
                usage.add(0, output)
                for one in output.outputs:
                    deltas = self._deltas(answers[one.index], one)
                    usage.reasoning_tokens = self._reasoning_tokens(answers)
                    for choice in deltas:
                        ends = output.finished and choice is deltas[-1] and one is output.outputs[-1]
                        end = closing(self.service, usage) if ends and not final_usage else {}
                        yield {**chunk([choice]), **end}
        if final_usage:
            yield {**chunk([], with_usage=True), **closing(self.service, usage)}

    def _deltas(self, answer: Answer, one: CompletionOutput) -> list[dict[str, Any]]:
        """The choices that tell of an output: logprobs and ids come with the first, the end with the last."""
        deltas = answer.deltas(one)
        if not deltas and (one.finish_reason or one.logprobs or (self.body.return_token_ids and one.token_ids)):
            deltas = [{} if answer.parsed else {"content": ""}]
        end = answer.ended(one)
        choices = []
        for at, delta in enumerate(deltas):
            part = end if at == len(deltas) - 1 else replace(one, finish_reason=None, stop_reason=None)
            if at:
                part = replace(part, logprobs=None, token_ids=[])
            choices.append(self._choice(part, "delta", delta))
        return choices

    def _reasoning_tokens(self, answers: list[Answer]) -> int | None:
        return sum(one.reasoning_tokens for one in answers) if self.service.formats.end_ids else None

    def _first(self, index: int) -> dict[str, Any]:
        delta = {"role": self.role, "content": self.echo}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _prompt_ids(self, prepared: PreparedRequest) -> dict[str, Any]:
        return {"prompt_token_ids": prepared.prompt_token_ids} if self.body.return_token_ids else {}

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, one: CompletionOutput, name: str, content: dict[str, Any]) -> dict[str, Any]:
        choice = {
            "index": one.index,
            name: content,
            "logprobs": self._logprobs(one),
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
        }
        if self.body.return_token_ids:
            choice["token_ids"] = one.token_ids
        return choice

    def _logprobs(self, one: CompletionOutput) -> dict[str, Any] | None:
        if one.logprobs is None:
            return None
        top = -1 if self.body.logprob_token_ids else self.body.top_logprobs or 0
        return chat_logprobs(one.logprobs, top, self.service.tokenizer, self.as_ids)
