"""`/v1/chat/completions/batch`: many conversations in one request, one choice for each."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, create_model

from vjax.errors import RequestError
from vjax.serving.chat import open_chat
from vjax.serving.dependencies import get_service, read_json
from vjax.serving.protocol import ChatRequest, Many
from vjax.serving.responses import Usage, closing, json_response

router = APIRouter(dependencies=[read_json])

MAX_CONVERSATIONS = 1024
REFUSED = ("stream", "tools", "use_beam_search")

# As a chat, but for its messages.
ChatBatchRequest: Any = create_model(
    "ChatBatchRequest",
    __base__=ChatRequest,
    messages=(Many[Many[dict[str, Any]]], Field(min_length=1, max_length=MAX_CONVERSATIONS)),
)


@router.post("/v1/chat/completions/batch")
async def create_chat_completions(body: ChatBatchRequest, request: Request) -> Response:
    service = get_service(request)
    for name in REFUSED:
        if getattr(body, name):
            raise RequestError(f"{name} does not go with a batch of conversations.", name)
    if body.n not in (None, 1):
        raise RequestError(f"n must be 1 in a batch of conversations, got {body.n}.", "n")
    id = service.response_id("chatcmpl", request, body.request_id)
    fields = body.model_dump(exclude_unset=True, exclude={"messages"})
    chats = []
    for at, messages in enumerate(body.messages):
        if not messages:
            raise RequestError(f"messages.{at} is empty.", f"messages.{at}")
        try:
            chats.append(await open_chat(service, ChatRequest(**fields, messages=messages), f"{id}-{at}"))
        except RequestError as error:
            raise RequestError(f"conversation {at}: {error}", error.param) from None
    outputs = await service.collect(request, [prepared for _, prepared in chats])
    usage, choices = Usage(), []
    for at, ((chat, _), output) in enumerate(zip(chats, outputs, strict=True)):
        usage.add(at, output)
        (choice,), reasoning_tokens = chat.choices(output)
        choices.append({**choice, "index": at})
        if reasoning_tokens is not None:
            usage.reasoning_tokens = (usage.reasoning_tokens or 0) + reasoning_tokens
    first, _ = chats[0]
    return json_response(
        {
            **first.head("chat.completion"),
            "id": id,
            "choices": choices,
            "usage": usage.body(service.options),
            **closing(service, usage),
        }
    )
