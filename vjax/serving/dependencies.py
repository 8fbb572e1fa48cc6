"""What routes ask of a request before they run."""

from __future__ import annotations

from collections.abc import Callable
from email.message import Message
from typing import Any

from fastapi import Depends, Request
from fastapi.exceptions import HTTPException

from vjax.frontend.pooling import PoolingInputs
from vjax.serving.errors import ApiError
from vjax.serving.service import Service


def get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _read_json(request: Request) -> None:
    message = Message()
    message["content-type"] = request.headers.get("content-type", "")
    if message.get_content_type() != "application/json" or not request.headers.get("content-type"):
        raise ApiError(400, "the Content-Type must be application/json.", "header.content-type", "Bad Request")


read_json = Depends(_read_json)


def _where(serves: Callable[[PoolingInputs | None], bool]) -> Any:
    """Routes that are there for models that can serve them; elsewhere they are no paths at all."""

    async def check(request: Request) -> None:
        if not serves(get_service(request).llm.pooling):
            raise HTTPException(404, "Not Found")

    return Depends(check)


generates = _where(lambda pooling: pooling is None)
pools = _where(lambda pooling: pooling is not None)
embeds = _where(lambda pooling: pooling is not None and "embed" in pooling.pooling.tasks)
classifies = _where(lambda pooling: pooling is not None and "classify" in pooling.pooling.tasks)
scores = _where(lambda pooling: pooling is not None and pooling.scores)
