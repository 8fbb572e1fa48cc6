"""`/v1/chat/completions`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from vjax.errors import RequestError
from vjax.frontend.inputs import PreparedRequest
from vjax.outputs import CompletionOutput, RequestOutput
from vjax.serving.dependencies import get_service, read_json
from vjax.serving.logprobs import chat_logprobs, prompt_logprobs
from vjax.serving.protocol import ChatRequest
from vjax.serving.responses import Usage, closing, json_response, stream_response, usage_wanted
from vjax.serving.service import Service
from vjax.tokenizing.time_limit import within

router = APIRouter(dependencies=[read_json])

# Names that a template gets from elsewhere; a request may not set them through chat_template_kwargs.
RESERVED = {
    "self", "template", "chat_template", "messages", "tools", "documents", "add_generation_prompt",
    "continue_final_message", "tokenize",
}  # fmt: skip

TEMPLATE_SECONDS = 10.0  # for a request's own template

# Kinds of content parts, and where their text is.
TEXT_PARTS = {
    "text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"
}  # fmt: skip


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
    chat = Chat(service, body, model, id, most)
    return chat, await chat.prepare(await render(service, body))


async def render(service: Service, body: Any) -> str:
    """The prompt text of a chat or tokenize request. Runs in a thread, as templates are programs."""
    messages = [normalise(message, at) for at, message in enumerate(body.messages)]
    variables = dict(body.chat_template_kwargs or {})
    if clash := sorted(RESERVED & set(variables)):
        raise RequestError(f"chat_template_kwargs may not set {clash[0]!r}.", "chat_template_kwargs")
    effort = getattr(body, "reasoning_effort", None)
    if effort is not None:
        variables = {"reasoning_effort": effort, "enable_thinking": effort != "none", **variables}
    own = request_template(service, body)
    work = partial(
        service.tokenizer.render_chat,
        messages,
        tools=None if getattr(body, "tool_choice", None) == "none" else body.tools,
        documents=getattr(body, "documents", None),
        add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
        continue_final_message=body.continue_final_message,
        chat_template=own or service.chat_template,
        **variables,
    )
    if own is None:
        return await asyncio.to_thread(work)
    try:
        return await asyncio.to_thread(within, TEMPLATE_SECONDS, work)
    except TimeoutError as error:
        raise RequestError(f"The chat template does not end: {error}.", "chat_template") from None


def request_template(service: Service, body: Any) -> str | None:
    """The request's own chat template, where the operator lets it bring one."""
    template: str | None = getattr(body, "chat_template", None)
    if template is not None and not service.options.trust_request_chat_template:
        raise RequestError(
            "this server takes no chat templates from requests (--trust-request-chat-template).", "chat_template"
        )
    return template


def normalise(message: dict[str, Any], at: int) -> dict[str, Any]:
    """A message as templates expect it: text content, and the arguments of earlier tool calls as objects."""
    where = f"messages.{at}"
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise RequestError(f"{where}.role must be a non-empty string.", f"{where}.role")
    message = {**message, "content": _text(message.get("content"), f"{where}.content")}
    if "reasoning_content" in message:
        message.setdefault("reasoning", message.pop("reasoning_content"))
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise RequestError(f"{where}.tool_calls must be a list.", f"{where}.tool_calls")
        message["tool_calls"] = [_tool_call(call, f"{where}.tool_calls") for call in calls]
    return message


def _text(content: Any, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be text or a list of parts.", where)
    texts: list[str] = []
    for part in content:
        part = {"type": "text", "text": part} if isinstance(part, str) else part
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise RequestError(f"{where} must hold strings, or objects with a type.", where)
        if kind not in TEXT_PARTS:
            raise RequestError(f"{where} holds a part of type {kind!r}; this model reads text only.", where)
        text = part.get(TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise RequestError(f"{where} holds a part without text.", where)
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise RequestError(f"{where} must hold objects with a function.", where)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise RequestError(f"{where} holds arguments that are not JSON.", where) from None
    return {**call, "function": {**function, "arguments": arguments}}


class Chat:
    """One request on its way to answers."""

    def __init__(self, service: Service, body: ChatRequest, model: str, id: str, most: int | None = None) -> None:
        self.most = service.max_new_tokens if most is None else most
        self.service, self.body, self.model, self.id = service, body, model, id
        self.created = int(time.time())
        last = body.messages[-1]
        self.role = service.options.response_role if not body.continue_final_message else last["role"]
        self.echo = last["content"] if body.echo and isinstance(last.get("content"), str) else ""
        self.as_ids = service.options.return_tokens_as_token_ids
        if body.return_tokens_as_token_ids is not None:
            self.as_ids = body.return_tokens_as_token_ids

    async def prepare(self, prompt: str) -> PreparedRequest:
        body = self.body
        wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        params = body.sampling(self.service.defaults, max_tokens=wanted, logprobs=logprobs)
        return await self.service.prepare(
            prompt,
            params,
            self.id,
            body,
            default_max_tokens=self.most,
            add_special_tokens=body.add_special_tokens,
        )

    async def answer(self, request: Request, prepared: PreparedRequest) -> dict[str, Any]:
        (output,) = await self.service.collect(request, [prepared])
        usage = Usage()
        usage.add(0, output)
        return {
            **self.head("chat.completion"),
            "choices": self.choices(output),
            "usage": usage.body(self.service.options),
            "prompt_logprobs": prompt_logprobs(output.prompt_logprobs),
            **self._prompt_ids(prepared),
            **({"prompt_text": prepared.prompt} if self.body.return_prompt_text else {}),
            **closing(self.service, usage),
        }

    def choices(self, output: RequestOutput) -> list[dict[str, Any]]:
        """What a finished request answers."""
        choices = []
        for one in output.outputs:
            message: dict[str, Any] = {
                "role": self.role,
                "content": self.echo + one.text,
                "refusal": None,
                "tool_calls": [],
            }
            choices.append(self._choice(one, "message", message))
        return choices

    async def chunks(self, prepared: PreparedRequest) -> AsyncGenerator[dict[str, Any], None]:
        final_usage, every_usage = usage_wanted(self.body, self.service.options)
        usage, head = Usage(), self.head("chat.completion.chunk")
        usage.prompt_tokens[0] = len(prepared.prompt_token_ids)

        def chunk(choices: list[dict[str, Any]], with_usage: bool = every_usage) -> dict[str, Any]:
            body = {**head, "choices": choices}
            return {**body, "usage": usage.body(self.service.options)} if with_usage else body

        async with aclosing(self.service.run(prepared)) as outputs:
            started = False
            async for output in outputs:
                if not started:
                    started = True
                    for index in range(prepared.params.n):
                        yield {**chunk([self._first(index)]), **self._prompt_ids(prepared)}
                usage.add(0, output)
                for one in output.outputs:
                    if one.text or one.finish_reason or one.logprobs or (self.body.return_token_ids and one.token_ids):
                        ends = output.finished and one is output.outputs[-1] and not final_usage
                        end = closing(self.service, usage) if ends else {}
                        yield {**chunk([self._choice(one, "delta", {"content": one.text})]), **end}
        if final_usage:
            yield {**chunk([], with_usage=True), **closing(self.service, usage)}

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
