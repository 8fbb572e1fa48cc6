"""`/invocations`, where SageMaker sends every request: its fields tell what it is."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Body, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from vjax.errors import RequestError
from vjax.serving.chat import create_chat_completion
from vjax.serving.completions import create_completion
from vjax.serving.dependencies import read_json
from vjax.serving.protocol import ChatRequest, CompletionRequest

router = APIRouter(dependencies=[read_json])


@router.post("/invocations")
async def invoke(request: Request, body: dict[str, Any] = Body()) -> Response:  # noqa: B008 - FastAPI's way
    if "messages" in body:
        return await create_chat_completion(_parse(ChatRequest, body), request)
    if "prompt" in body:
        return await create_completion(_parse(CompletionRequest, body), request)
    raise RequestError("a body for /invocations holds messages (a chat) or a prompt (a completion).", "body")


def _parse(kind: Any, body: dict[str, Any]) -> Any:
    """As FastAPI validates the body of a route."""
    model: type[BaseModel] = kind
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from None
