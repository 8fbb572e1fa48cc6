"""vLLM's error object and status codes for everything that can go wrong with a request."""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from vjax.errors import EngineDeadError, RequestError, VjaxError

log = logging.getLogger(__name__)

SHOWN = 10  # validation errors in one message
MAX_MESSAGE, MAX_PARAM = 2000, 200  # characters: both may show what the client sent
TYPES = {
    400: "BadRequestError",
    401: "Unauthorized",
    404: "NotFoundError",
    413: "BadRequestError",
    422: "UnprocessableEntityError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
MESSAGES_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]+")
_ADDRESS = re.compile(r"\s+at 0x[0-9a-fA-F]+")


class ApiError(VjaxError):
    """An error with its HTTP status."""

    def __init__(self, status: int, message: str, param: str | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.kind = status, param, kind or TYPES.get(status) or HTTPStatus(status).phrase


def as_api_error(error: BaseException) -> ApiError:
    """What a client is told about an exception. The unexpected is logged here and not shown."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), error.param)
    if isinstance(error, EngineDeadError):
        return ApiError(500, f"the engine is not running: {error}")
    if isinstance(error, VjaxError):
        return ApiError(500, str(error))
    log.error("a request failed", exc_info=error)
    return ApiError(500, f"internal error: {type(error).__name__}")


def error_body(error: ApiError) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`, without file paths or addresses of this machine."""
    message = _ADDRESS.sub("", _PATH.sub("<path>", str(error))) if error.status >= 500 else str(error)
    message = message.encode("utf-8", "replace").decode()  # half a surrogate pair, from inside or a file
    param = None if error.param is None else _cut(error.param, MAX_PARAM)
    return {"error": {"message": _cut(message, MAX_MESSAGE), "type": error.kind, "param": param, "code": error.status}}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def messages_error(error: ApiError) -> dict[str, Any]:
    """Anthropic's error object."""
    kind = MESSAGES_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error_body(error)["error"]["message"]}}


def speaks_messages(path: str) -> bool:
    """Whether a path's errors are Anthropic's."""
    return path.endswith(("/v1/messages", "/v1/messages/count_tokens"))


def error_response(error: BaseException, path: str = "") -> JSONResponse:
    known = as_api_error(error)
    headers = {"Retry-After": "1"} if known.status == 503 else None
    body = messages_error(known) if speaks_messages(path) else error_body(known)
    return JSONResponse(body, status_code=known.status, headers=headers)


def install(app: FastAPI) -> None:
    """Answer every exception of a route with the error object."""

    async def known(request: Request, error: Exception) -> JSONResponse:
        return error_response(error, request.url.path)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_response(_validation_error(error), request.url.path)

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code == 404 and error.detail == "Not Found":
            return JSONResponse({"detail": "Not Found"}, status_code=404)
        return error_response(ApiError(error.status_code, str(error.detail)), request.url.path)

    app.add_exception_handler(VjaxError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, known)


def _validation_error(error: RequestValidationError) -> ApiError:
    """Each problem with the path of its field; the input itself is not repeated, as it may be large."""
    problems = error.errors()
    lines = [f"{'.'.join(str(part) for part in p['loc'])}: {p['msg']}" for p in problems[:SHOWN]]
    first = ".".join(str(part) for part in problems[0]["loc"]) if problems else None
    if problems and problems[0]["type"] == "json_invalid":
        detail = problems[0].get("ctx", {}).get("error", "")
        return ApiError(400, f"the body is not valid JSON: {detail}", first, "Bad Request")
    more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    count = f"{len(problems)} validation error{'s' if len(problems) != 1 else ''}"
    return ApiError(400, f"{count}: {'; '.join(lines)}{more}", first, "Bad Request")
