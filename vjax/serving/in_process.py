"""Requests to an application in this process, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from starlette.types import ASGIApp, Message


async def post(app: ASGIApp, path: str, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> tuple[int, bytes]:
    """Status and body of the answer to a POST of JSON. Cancelling it is a client that leaves."""
    sent = False
    status, parts = 500, []

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # the client stays until it has its answer
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        parts.append(message.get("body", b""))

    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": None, "server": None,
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers],
    }  # fmt: skip
    await app(scope, receive, send)
    return status, b"".join(parts)
