"""What happens to every HTTP request before its route: keys, readiness, the size of its body, its id.

Plain ASGI: a middleware that wraps responses would hide a client's disconnect from them.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vjax.serving.errors import ApiError, error_response, speaks_messages
from vjax.serving.operations import PATHS
from vjax.serving.service import Service

PROTECTED = (
    "/v1", "/v2", "/inference", "/invocations", "/generative_scoring", "/pooling", "/classify", "/score", "/rerank",
    *PATHS,
)  # fmt: skip
ALWAYS_OPEN = {"/version", "/metrics"}
UNCOUNTED = {"/metrics", "/health", "/load", "/ping", "/version", "/server_info"}
GENERATING = {
    "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/responses", "/v1/messages",
    "/inference/v1/generate", "/invocations", "/generative_scoring", "/v1/embeddings", "/pooling", "/classify",
    "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank",
}  # fmt: skip


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(root + "/") else path


def _header(scope: Scope, name: bytes) -> bytes | None:
    found: bytes | None = dict(scope["headers"]).get(name)
    return found


def _credentials(scope: Scope, path: str) -> bytes:
    """The Authorization header, or where Anthropic's clients put their key."""
    given = _header(scope, b"authorization")
    if given is None and speaks_messages(path) and (key := _header(scope, b"x-api-key")):
        return b"Bearer " + key
    return given or b""


class Auth:
    """Bearer tokens for what generates. Nothing is asked for without keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self.keys = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.keys and scope["method"] != "OPTIONS":
            path = _path(scope)
            guarded = any(path == prefix or path.startswith(prefix + "/") for prefix in PROTECTED)
            if guarded and not self._knows(_credentials(scope, path)):
                refusal = JSONResponse({"error": "Unauthorized"}, status_code=401)
                if speaks_messages(path):
                    refusal = error_response(ApiError(401, "the key is missing or wrong."), path)
                await refusal(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _knows(self, header: bytes) -> bool:
        scheme, _, token = header.partition(b" ")
        digest = hashlib.sha256(token.strip()).digest()
        # Every key is compared, in time that does not depend on where they differ.
        matches = [hmac.compare_digest(digest, key) for key in self.keys]
        return scheme.lower() == b"bearer" and any(matches)


class Gate:
    """Counts requests, and turns them away while the model loads or too many wait."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = _path(scope)
        if not self.service.ready and path not in ALWAYS_OPEN:
            await error_response(ApiError(503, "the model is still loading."), path)(scope, receive, send)
            return
        counted, status = path in GENERATING, 500
        if counted and self.service.full():
            self.service.metrics.rejected("max_num_queued_reqs")
            refusal = ApiError(503, "too many requests wait (--max-num-queued-reqs): try again later.")
            await error_response(refusal, path)(scope, receive, send)
            return

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.service.load += counted
        try:
            await self.app(scope, receive, seen)
        finally:
            self.service.load -= counted
            if path not in UNCOUNTED:
                # The route, not the path: a scanner must not make a label of every address that it tries.
                handler = getattr(scope.get("route"), "path", "none")
                self.service.metrics.http.labels(scope["method"], f"{status // 100}xx", handler).inc()


class BodyLimit:
    """Refuses bodies over `limit` bytes, whether or not their length was announced."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = _header(scope, b"content-length") or b"0"
        if announced.isdigit() and int(announced[:20]) > self.limit:
            await error_response(ApiError(413, self._message()), scope["path"])(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.limit:
                raise HTTPException(413, self._message())
            return message

        await self.app(scope, counted, send)

    def _message(self) -> str:
        return f"the request body is larger than {self.limit} bytes (--max-request-body-bytes)."


class RequestIds:
    """Sends `X-Request-Id` back, made up where the client sent none."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = _header(scope, b"x-request-id")
        id = given or uuid.uuid4().hex.encode()
        if given is None:
            scope = {**scope, "headers": [*scope["headers"], (b"x-request-id", id)]}

        async def named(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"x-request-id", id)]}
            await send(message)

        await self.app(scope, receive, named)
