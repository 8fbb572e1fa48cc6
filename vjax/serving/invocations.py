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
from vjax.serving.dependencies import get_service, read_json
from vjax.serving.embeddings import create_embeddings, pool
from vjax.serving.pooled import inputs_of
from vjax.serving.pooling_protocol import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from vjax.serving.protocol import ChatRequest, CompletionRequest
from vjax.serving.scores import classify, rerank, score

router = APIRouter(dependencies=[read_json])


@router.post("/invocations")
async def invoke(request: Request, body: dict[str, Any] = Body()) -> Response:  # noqa: B008 - FastAPI's way
    if get_service(request).llm.pooling is not None:
        return await _pooled(request, body)
    if "messages" in body:
        return await create_chat_completion(_parse(ChatRequest, body), request)
    if "prompt" in body:
        return await create_completion(_parse(CompletionRequest, body), request)
    raise RequestError("a body for /invocations holds messages (a chat) or a prompt (a completion).", "body")


async def _pooled(request: Request, body: dict[str, Any]) -> Response:
    """The same for a model that encodes."""
    pooling = inputs_of(get_service(request))
    if "query" in body and pooling.scores:
        return await rerank(_parse(RerankRequest, body), request)
    if ({"queries", "data_1", "text_1"} & set(body)) and pooling.scores:
        return await score(_parse(ScoreRequest, body), request)
    if "task" in body:
        return await pool(_parse(PoolingRequest, body), request)
    if "classify" in pooling.pooling.tasks:
        return await classify(_parse(ClassifyRequest, body), request)
    return await create_embeddings(_parse(EmbeddingRequest, body), request)


def _parse(kind: Any, body: dict[str, Any]) -> Any:
    """As FastAPI validates the body of a route."""
    model: type[BaseModel] = kind
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from None
