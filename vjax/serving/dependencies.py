"""What routes ask of a request before they run."""

from __future__ import annotations

import re
from collections.abc import Callable
from email.message import Message
from typing import Any

from fastapi import Depends, Request
from fastapi.exceptions import HTTPException

from vjax.frontend.pooling import PoolingInputs
from vjax.serving.errors import ApiError
from vjax.serving.service import Service

MAX_DEPTH = 100  # lists and objects in each other; templates and encoders recurse over what a body holds
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _read_json(request: Request) -> None:
    message = Message()
    message["content-type"] = request.headers.get("content-type", "")
    if message.get_content_type() != "application/json" or not request.headers.get("content-type"):
        raise ApiError(400, "the Content-Type must be application/json.", "header.content-type", "Bad Request")
    raw = await request.body()
    if b"\0" in raw or not _is_utf8(raw):
        raise ApiError(400, "the body must be UTF-8.", "body", "Bad Request")
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        check_depth(await request.json())
    if SURROGATE.search(raw):
        check_text(await request.json())


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


def check_depth(body: Any) -> None:
    """Refuse what is nested too deep. Raises `ApiError` naming the body's field."""
    for name, value in body.items() if isinstance(body, dict) else ():
        level, depth = _inner([value]), 1
        while level:
            level, depth = _inner(level), depth + 1
            if depth > MAX_DEPTH:
                where = f"body.{name}"
                raise ApiError(400, f"{where} is nested more than {MAX_DEPTH} levels deep.", where, "Bad Request")


def check_text(value: Any, where: str = "body") -> None:
    """Refuse text with half a surrogate pair, which nothing can encode. Raises `ApiError` naming the place."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(value[error.start]):04x}"
            message = f"{where} holds the lone surrogate {half} at character {error.start}, which is not valid Unicode."
            raise ApiError(400, message, where, "Bad Request") from None
        return
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(name, str):
            check_text(name, where)
        if isinstance(inner, (str, dict, list)):
            check_text(inner, f"{where}.{name}")


def _inner(level: list[Any]) -> list[Any]:
    """The lists and objects in those of a level."""
    return [
        inner
        for value in level
        for inner in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        if isinstance(inner, (dict, list))
    ]


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
