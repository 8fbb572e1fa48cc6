"""`/v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from vjax.errors import RequestError
from vjax.frontend.inputs import PreparedRequest
from vjax.outputs import CompletionOutput, RequestOutput
from vjax.serving.context import Context, event_stream, last, usage, while_connected
from vjax.serving.logprobs import chat_logprobs, prompt_logprobs
from vjax.serving.protocol import ChatRequest

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}


def routes(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        model = context.check_model(body.model)
        body.refuse_unsupported()
        request_id = context.request_id("chatcmpl", request, body.request_id)
        prepared = await prepare(context, body, request_id)
        answer = Answer(context, body, prepared, model)
        if body.stream:
            return event_stream(answer.chunks())
        final = await while_connected(request, last(context.outputs(prepared)))
        return JSONResponse(answer.whole(final))

    return router


async def prepare(context: Context, body: ChatRequest, request_id: str) -> PreparedRequest:
    """Render, tokenise and validate; everything that can be refused is refused here."""
    text = render(
        context,
        body.messages,
        tools=None if body.tool_choice == "none" else body.tools,
        documents=body.documents,
        add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
        continue_final_message=body.continue_final_message,
        **(body.chat_template_kwargs or {}),
    )
    given = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    # Without a limit, an answer may fill the context.
    params = body.sampling(context.defaults(), max_tokens=given, logprobs=logprobs)
    prepared = await context.llm.prepare(
        text, params, request_id, priority=body.priority, cache_salt=body.cache_salt,
        add_special_tokens=body.add_special_tokens,
    )  # fmt: skip
    if given is None:
        context.cap(prepared)
    return prepared


def render(context: Context, messages: list[dict[str, Any]], **options: Any) -> str:
    """The conversation as text, by the chat template."""
    return context.tokenizer.render_chat(
        [plain_message(message) for message in messages], chat_template=context.chat_template, **options
    )


def plain_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose content parts are joined into text; parts that are not text are refused."""
    if not isinstance(message.get("role"), str):
        raise RequestError("every message needs a role.", "messages")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message if content is not None or "content" not in message else {**message, "content": ""}
    if not isinstance(content, list):
        raise RequestError(
            f"a message's content must be text or a list of parts, got {type(content).__name__}.", "messages"
        )
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        value = part.get(TEXT_PARTS[kind]) if kind in TEXT_PARTS else part if isinstance(part, str) else None
        if not isinstance(value, str):
            raise RequestError(f"content parts of type {kind!r} are not supported by this model.", "messages")
        texts.append(value)
    return {**message, "content": "\n".join(texts)}


class Answer:
    """Shapes one request's outputs."""

    def __init__(self, context: Context, body: ChatRequest, prepared: PreparedRequest, model: str) -> None:
        self.context, self.body, self.prepared = context, body, prepared
        self.head = {"id": prepared.request_id, "created": int(time.time()), "model": model}
        asked = body.return_tokens_as_token_ids
        self.as_ids = context.options.return_tokens_as_token_ids if asked is None else asked
        self.role = context.options.response_role if body.add_generation_prompt else body.messages[-1]["role"]
        continued = body.echo and body.messages[-1].get("role") == self.role
        self.echoed = plain_message(body.messages[-1]).get("content") or "" if continued else ""

    def whole(self, final: RequestOutput) -> dict[str, Any]:
        choices = []
        for choice in final.outputs:
            shown: dict[str, Any] = {
                "index": choice.index,
                "message": {"role": self.role, "content": self.echoed + choice.text},
                "logprobs": self._logprobs(choice),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
            if self.body.return_token_ids:
                shown["token_ids"] = choice.token_ids
            choices.append(shown)
        answer = {**self.head, "object": "chat.completion", "choices": choices}
        answer["usage"] = self._usage(final, sum(len(choice.token_ids) for choice in final.outputs))
        if final.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(final.prompt_logprobs)
        if self.body.return_token_ids:
            answer["prompt_token_ids"] = final.prompt_token_ids
        return answer

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        options = self.body.stream_options
        force = self.context.options.enable_force_include_usage
        with_usage = force or (options is not None and options.include_usage)
        always = force or (options is not None and options.continuous_usage_stats)
        generated, output = 0, None
        started = False
        outputs = self.context.outputs(self.prepared)
        try:
            async for output in outputs:
                if not started:
                    started = True
                    for index in range(self.prepared.params.n):
                        yield self._opening(index, self._usage(output, 0) if always else None, output)
                for choice in output.outputs:
                    generated += len(choice.token_ids)
                    if choice.text or choice.token_ids or choice.finish_reason:
                        yield self._chunk(choice, self._usage(output, generated) if always else None)
        finally:
            await outputs.aclose()  # type: ignore[attr-defined]
        if with_usage and output is not None:
            yield {**self._head(), "choices": [], "usage": self._usage(output, generated)}

    def _opening(self, index: int, counts: dict[str, Any] | None, output: RequestOutput) -> dict[str, Any]:
        delta = {"role": self.role, "content": self.echoed}
        chunk = {**self._head(), "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]}
        if self.body.return_token_ids:
            chunk["prompt_token_ids"] = output.prompt_token_ids
        return chunk if counts is None else {**chunk, "usage": counts}

    def _chunk(self, choice: CompletionOutput, counts: dict[str, Any] | None) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "index": choice.index,
            "delta": {"content": choice.text},
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.finish_reason,
        }
        if choice.finish_reason is not None:
            shown["stop_reason"] = choice.stop_reason
        if self.body.return_token_ids:
            shown["token_ids"] = choice.token_ids
        chunk = {**self._head(), "choices": [shown]}
        return chunk if counts is None else {**chunk, "usage": counts}

    def _head(self) -> dict[str, Any]:
        return {**self.head, "object": "chat.completion.chunk"}

    def _logprobs(self, choice: CompletionOutput) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        return chat_logprobs(choice.logprobs or [], self.body.top_logprobs or 0, self.as_ids)

    def _usage(self, output: RequestOutput, generated: int) -> dict[str, Any]:
        cached = output.num_cached_tokens if self.context.options.enable_prompt_tokens_details else None
        return usage(len(self.prepared.prompt_token_ids), generated, cached)
