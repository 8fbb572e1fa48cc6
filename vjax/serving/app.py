"""`build_app`: the FastAPI application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response

from vjax.serving import (
    chat,
    chat_batch,
    completions,
    embeddings,
    invocations,
    messages,
    models,
    operations,
    responses_api,
    scores,
    scoring,
    token_io,
    tokenization,
)
from vjax.serving.dependencies import generates
from vjax.serving.errors import install
from vjax.serving.middleware import Auth, BodyLimit, Gate, RequestIds
from vjax.serving.options import ServerOptions
from vjax.serving.service import ClientGoneError, Service
from vjax.version import __version__

if TYPE_CHECKING:
    from vjax.frontend.async_llm import AsyncLLM

CLIENT_CLOSED_REQUEST = 499  # nginx's code; for the access log only


def build_app(llm: AsyncLLM, options: ServerOptions | None = None, *, ready: bool = True) -> FastAPI:
    """The application over an engine that has started.

    With `ready=False` it may still start: every request but those for `/version` and `/metrics` gets a 503 until
    `app.state.service.open()`.
    """
    options = options or ServerOptions()
    service = Service(llm, options)
    app = FastAPI(title="vjax", version=__version__, root_path=options.root_path)
    app.state.service = service
    for part in (models, operations, embeddings, scores, invocations, tokenization):
        app.include_router(part.router)
    for part in (completions, chat, chat_batch, responses_api, messages, token_io, scoring):
        app.include_router(part.router, dependencies=[generates])
    install(app)
    app.add_exception_handler(ClientGoneError, _nobody)
    # The last one added is the first to see a request.
    app.add_middleware(BodyLimit, limit=options.max_request_body_bytes)
    app.add_middleware(Gate, service=service)
    app.add_middleware(Auth, keys=options.api_keys())
    if options.enable_request_id_headers:
        app.add_middleware(RequestIds)
    if options.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.allowed_origins,
            allow_credentials=options.allow_credentials,
            allow_methods=options.allowed_methods or ["*"],
            allow_headers=options.allowed_headers or ["*"],
        )
    if ready:
        service.open()
    return app


async def _nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)
