"""`/v1/responses`, over the chat path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from vjax.frontend.inputs import PreparedRequest
from vjax.serving.chat import Chat, open_chat
from vjax.serving.dependencies import get_service, read_json
from vjax.serving.dialects import Told, pieces
from vjax.serving.errors import ApiError
from vjax.serving.responses import json_response, named_events
from vjax.serving.responses_input import ResponsesRequest, to_chat, to_messages
from vjax.serving.responses_output import Event, Reply
from vjax.serving.responses_store import ResponseStore, Stored

router = APIRouter()


@router.post("/v1/responses", dependencies=[read_json])
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    service = get_service(request)
    store = service.responses
    if body.background and (not store.enabled or body.store is False):
        raise ApiError(400, "background needs a store (--responses-store).", "background", "invalid_request_error")
    before = []
    if body.previous_response_id is not None:
        before = _history(store.get(body.previous_response_id, "previous_response_id"))
    messages = [*before, *to_messages(body.input)]
    streamed = bool(body.stream or body.background)
    chat_body = to_chat(body, messages, streamed)
    most = None if body.truncation == "auto" else body.max_output_tokens
    stored = store.enabled and body.store is not False
    reply = Reply(body, service.check_model(body.model), stored)
    chat, prepared = await open_chat(service, chat_body, reply.id, most=most)
    entry = Stored(reply, messages)
    if body.background:
        return _background(store, entry, chat, prepared, bool(body.stream))
    if body.stream:
        return named_events(_kept(store, entry, _events(reply, chat, prepared)), reply.error_event)
    reply.start()
    _finish(reply, await chat.answer(request, prepared))
    if stored:
        _keep(store, entry)
    return json_response(reply.response)


@router.get("/v1/responses/{id}")
async def get_response(id: str, request: Request, stream: bool = False, starting_after: int = -1) -> Response:
    stored = get_service(request).responses.get(id)
    if not stream:
        return json_response(stored.reply.response)
    if stored.events is None:
        raise ApiError(400, "only a streamed background response can be streamed again.", "stream")
    return named_events(stored.follow(starting_after), stored.reply.error_event)


@router.post("/v1/responses/{id}/cancel")
async def cancel_response(id: str, request: Request) -> Response:
    stored = get_service(request).responses.get(id)
    if stored.task is None:
        raise ApiError(400, "only a background response can be cancelled.", "response_id", "invalid_request_error")
    if not stored.reply.over:
        stored.task.cancel()
        await asyncio.wait([stored.task])
        _cancelled(stored)  # a task that had not begun did not do it
    return json_response(stored.reply.response)


@router.delete("/v1/responses/{id}")
async def delete_response(id: str, request: Request) -> Response:
    store = get_service(request).responses
    store.get(id)
    store.remove(id)
    return json_response({"id": id, "object": "response", "deleted": True})


def _history(stored: Stored) -> list[dict[str, Any]]:
    """The conversation up to and with an answer."""
    if not stored.reply.over:
        raise ApiError(
            400, "the previous response is still being made.", "previous_response_id", "invalid_request_error"
        )
    output = stored.reply.response["output"]
    return [*stored.messages, *(to_messages(output) if output else [])]


def _finish(reply: Reply, answer: dict[str, Any]) -> None:
    """Take in a whole chat answer, as if it were streamed in one piece."""
    (choice,) = answer["choices"]
    said = choice["message"]
    calls = [{"index": at, **call} for at, call in enumerate(said.get("tool_calls") or ())]
    for kind, piece in pieces({"choices": [{**choice, "delta": {**said, "tool_calls": calls}}]}):
        if kind != "end":
            reply.take(kind, piece)
    reply.end(choice, answer["usage"])


async def _events(reply: Reply, chat: Chat, prepared: PreparedRequest) -> AsyncGenerator[Event, None]:
    told = Told()
    for event in reply.start():
        yield event
    try:
        async with aclosing(told.pieces(chat.chunks(prepared))) as news:
            async for kind, piece in news:
                for event in reply.take(kind, piece):
                    yield event
    except Exception as error:
        for event in reply.fail(error):
            yield event
        return
    for event in reply.end(told.end, told.usage):
        yield event


async def _kept(
    store: ResponseStore, entry: Stored, events: AsyncGenerator[Event, None]
) -> AsyncGenerator[Event, None]:
    """The same events; the answer is kept before its last one is sent."""
    async with aclosing(events):
        async for event in events:
            if entry.reply.over and entry.reply.response["store"] and "response" in event:
                _keep(store, entry)
                event["response"]["store"] = entry.reply.response["store"]
            yield event


def _keep(store: ResponseStore, entry: Stored) -> None:
    """An answer that was made is given, whether or not it can be kept."""
    try:
        store.add(entry)
    except ApiError:
        entry.reply.response["store"] = False


def _background(store: ResponseStore, entry: Stored, chat: Chat, prepared: PreparedRequest, streamed: bool) -> Response:
    """Answer at once; the work goes on without the client."""
    entry.events = [] if streamed else None
    store.add(entry)
    queued = json_response(entry.reply.response)
    entry.task = asyncio.create_task(_work(store, entry, chat, prepared))
    return named_events(entry.follow(), entry.reply.error_event) if streamed else queued


def _cancelled(entry: Stored) -> None:
    if not entry.reply.over:
        for event in entry.reply.cancel():
            entry.tell(event)


async def _work(store: ResponseStore, entry: Stored, chat: Chat, prepared: PreparedRequest) -> None:
    reply = entry.reply
    try:
        async with aclosing(_events(reply, chat, prepared)) as events:
            async for event in events:
                store.grow(entry, entry.tell(event))
        store.measure(entry)
    except asyncio.CancelledError:
        _cancelled(entry)
    except Exception as error:  # it does not fit into the store
        for event in reply.fail(error):
            entry.tell(event)
