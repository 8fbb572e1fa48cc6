"""What happens to every HTTP request before a route sees it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from vjax.serving.errors import ApiError, error_body
from vjax.serving.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PROTECTED = ("/v1", "/v2", "/inference")


class Gate:
    """API keys, JSON only, a bound on the body, the request id header, and the count of answers."""

    def __init__(
        self, app: App, *, api_keys: list[str], max_body: int, metrics: Metrics, echo_request_id: bool
    ) -> None:
        self.app, self.max_body, self.metrics, self.echo = app, max_body, metrics, echo_request_id
        self.keys = [key.encode() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        request_id = headers.get(b"x-request-id") or secrets.token_hex(16).encode()
        status = 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.echo:
                    message.setdefault("headers", []).append((b"x-request-id", request_id[:256]))
            await send(message)

        try:
            refusal = self._refusal(scope, headers)
            if refusal is not None:
                await respond(counted, *refusal)
            else:
                await self._bounded(scope, receive, counted)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", None) or "other"
            if path not in ("/metrics", "/health", "/ping", "/load", "/version"):
                self.metrics.http.labels(scope["method"], f"{status // 100}xx", path).inc()

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, dict[str, Any]] | None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self.keys and scope["method"] != "OPTIONS" and path.startswith(PROTECTED):
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            # Every key is compared, so that the time taken says nothing about them.
            matches = [secrets.compare_digest(token.strip(), key) for key in self.keys]
            if scheme.lower() != b"bearer" or not any(matches):
                return 401, {"error": "Unauthorized"}
        if scope["method"] == "POST":
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != b"application/json" and headers.get(b"content-length", b"0") != b"0":
                error = ApiError(400, "the content type must be application/json.", "content-type", "Bad Request")
                return 400, error_body(error)
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.max_body:
            return self._too_large()
        return None

    def _too_large(self) -> tuple[int, dict[str, Any]]:
        return 413, error_body(ApiError(413, f"the body is larger than {self.max_body} bytes.", "body"))

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A body without a length is counted as it comes."""
        seen, started = 0, False

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self.max_body:
                    raise BodyTooLargeError
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, counted, watched)
        except BodyTooLargeError:
            if not started:
                await respond(send, *self._too_large())


class BodyTooLargeError(Exception):
    pass


async def respond(send: Send, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
