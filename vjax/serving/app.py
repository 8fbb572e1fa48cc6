"""The FastAPI application."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response

from vjax.frontend.async_llm import AsyncLLM
from vjax.serving import chat, completions, errors, tokenization
from vjax.serving.context import Context
from vjax.serving.metrics import Metrics
from vjax.serving.middleware import Gate
from vjax.serving.options import ServerOptions
from vjax.version import __version__


def build_app(
    llm: AsyncLLM, options: ServerOptions, names: list[str], chat_template: str | None = None
) -> FastAPI:  # fmt: skip
    """Routes over a started engine. `names`: what clients may call the model."""
    metrics = Metrics(names[0], llm.limits.max_model_len, llm.stats)
    context = Context(llm, options, names, metrics, chat_template)
    app = FastAPI(title="vjax", version=__version__, root_path=options.root_path)
    errors.install(app)
    for routes in (chat.routes, completions.routes, tokenization.routes, _operations):
        app.include_router(routes(context))
    if options.allowed_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=options.allowed_origins, allow_methods=["*"], allow_headers=["*"]
        )  # fmt: skip
    app.add_middleware(
        Gate,
        api_keys=options.api_key or [],
        max_body=options.max_request_body_bytes,
        metrics=metrics,
        echo_request_id=options.enable_request_id_headers,
    )
    return app


def _operations(context: Context) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        cards = [
            {
                "id": name,
                "object": "model",
                "created": context.started,
                "owned_by": "vjax",
                "root": context.llm.config.model,
                "parent": None,
                "max_model_len": context.llm.limits.max_model_len,
            }
            for name in context.names
        ]
        return {"object": "list", "data": cards}

    @router.get("/health")
    @router.get("/ping")
    @router.post("/ping")
    async def health() -> Response:
        return Response(status_code=503 if context.llm.is_dead else 200)

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @router.get("/load")
    async def load() -> dict[str, int]:
        return {"server_load": context.llm.num_inflight}

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(context.metrics.expose(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router
