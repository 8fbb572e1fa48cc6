"""`/v1/messages`, Anthropic's dialect, over the chat path."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from vjax.frontend.inputs import PreparedRequest, check_text
from vjax.serving.chat import Chat, open_chat
from vjax.serving.dependencies import get_service, read_json
from vjax.serving.dialects import Told
from vjax.serving.errors import as_api_error, messages_error
from vjax.serving.messages_input import CountRequest, MessagesRequest, sampling_fields, thinking_budget, to_chat
from vjax.serving.rendering import render
from vjax.serving.responses import json_response, named_events

router = APIRouter(dependencies=[read_json])

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


@router.post("/v1/messages")
async def create_message(body: MessagesRequest, request: Request) -> Response:
    service = get_service(request)
    usage = {"include_usage": True} if body.stream else None
    chat_body = to_chat(body, stream=body.stream, stream_options=usage, **sampling_fields(body))
    if service.formats.forces_ends:  # a target, for clients; where it cannot be forced it is let be
        chat_body.thinking_token_budget = thinking_budget(body)
    id = service.response_id("msg", request, None)
    chat, prepared = await open_chat(service, chat_body, id, most=body.max_tokens)
    if body.stream:
        return named_events(_events(chat, prepared), lambda error: messages_error(as_api_error(error)))
    return json_response(_message(await chat.answer(request, prepared)))


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountRequest, request: Request) -> Response:
    service = get_service(request)
    chat = to_chat(body)
    service.check_model(chat.model)
    text = await render(service, chat)
    check_text(text)
    ids = await asyncio.to_thread(service.tokenizer.encode, text, chat.add_special_tokens)
    return json_response({"input_tokens": len(ids)})


def _message(answer: dict[str, Any]) -> dict[str, Any]:
    """A chat answer as a message."""
    (choice,) = answer["choices"]
    said, content = choice["message"], list[dict[str, Any]]()
    if said.get("reasoning"):
        content.append({"type": "thinking", "thinking": said["reasoning"], "signature": ""})
    if said.get("content"):
        content.append({"type": "text", "text": said["content"]})
    for call in said.get("tool_calls") or ():
        function = call["function"]
        content.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": _object(function["arguments"])}
        )
    return {
        **_head(answer["id"], answer["model"]),
        "content": content,
        **_stop(choice, any(block["type"] == "tool_use" for block in content)),
        "usage": _usage(answer["usage"]),
    }


def _head(id: str, model: str) -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "model": model}


def _stop(choice: dict[str, Any], called: bool) -> dict[str, Any]:
    if called and choice["finish_reason"] == "stop":  # of a tool that the client named
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if choice["finish_reason"] == "stop" and isinstance(choice.get("stop_reason"), str):
        return {"stop_reason": "stop_sequence", "stop_sequence": choice["stop_reason"]}
    return {"stop_reason": STOP_REASONS.get(choice["finish_reason"], "end_turn"), "stop_sequence": None}


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Anthropic counts tokens from the cache apart."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "output_tokens": usage["completion_tokens"],
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }


def _object(text: str) -> dict[str, Any]:
    """The arguments of a call, which a model may leave half-written."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {"_raw": text}
    return value if isinstance(value, dict) else {"_raw": value}


async def _events(chat: Chat, prepared: PreparedRequest) -> AsyncGenerator[dict[str, Any], None]:
    blocks, told = _Blocks(), Told()
    start = {"prompt_tokens": len(prepared.prompt_token_ids), "completion_tokens": 0}
    message = {**_head(chat.id, chat.model), "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**message, "usage": _usage(start)}}
    async with aclosing(told.pieces(chat.chunks(prepared))) as news:
        async for kind, piece in news:
            for event in blocks.take(kind, piece):
                yield event
    for event in blocks.close():
        yield event
    stop = (
        _stop(told.end, blocks.called) if told.end is not None else {"stop_reason": "end_turn", "stop_sequence": None}
    )
    yield {"type": "message_delta", "delta": stop, "usage": _usage(told.usage or start)}
    yield {"type": "message_stop"}


class _Blocks:
    """The content blocks of a stream, of which one is open at a time."""

    def __init__(self) -> None:
        self.index, self.open = -1, None  # type: int, Any
        self.called = False

    def take(self, kind: str, piece: Any) -> list[dict[str, Any]]:
        if kind == "tool":
            self.called = True
            events = self._switch(
                ("tool", piece["index"]),
                {
                    "type": "tool_use",
                    "id": piece["id"] or f"toolu_{uuid.uuid4().hex}",
                    "name": piece["name"] or "",
                    "input": {},
                },
            )
            delta = {"type": "input_json_delta", "partial_json": piece["arguments"]}
            return [*events, self._delta(delta)] if piece["arguments"] else events
        if kind == "reasoning":
            events = self._switch(kind, {"type": "thinking", "thinking": "", "signature": ""})
            return [*events, self._delta({"type": "thinking_delta", "thinking": piece})]
        events = self._switch(kind, {"type": "text", "text": ""})
        return [*events, self._delta({"type": "text_delta", "text": piece["delta"]["content"]})]

    def close(self) -> list[dict[str, Any]]:
        if self.open is None:
            return []
        events: list[dict[str, Any]] = []
        if self.open == "reasoning":
            events.append(self._delta({"type": "signature_delta", "signature": ""}))
        self.open = None
        return [*events, {"type": "content_block_stop", "index": self.index}]

    def _switch(self, kind: Any, block: dict[str, Any]) -> list[dict[str, Any]]:
        if self.open == kind:
            return []
        events = self.close()
        self.open, self.index = kind, self.index + 1
        return [*events, {"type": "content_block_start", "index": self.index, "content_block": block}]

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self.index, "delta": delta}
