"""`/v1/models`, and the routes that tell how the server is."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from vjax.serving.dependencies import get_service
from vjax.serving.errors import ApiError
from vjax.serving.responses import json_response
from vjax.serving.service import Service
from vjax.version import __version__

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    service = get_service(request)
    return json_response({"object": "list", "data": [_card(service, name) for name in service.names]})


@router.get("/v1/models/{name:path}")
async def get_model(name: str, request: Request) -> Response:
    service = get_service(request)
    return json_response(_card(service, service.check_model(name)))


def _card(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "vjax",
        "root": service.llm.config.model,
        "parent": None,
        "max_model_len": service.llm.limits.max_model_len,
        "permission": [],
    }


@router.get("/health")
@router.get("/ping")
@router.post("/ping")
async def health(request: Request) -> Response:
    """200 with no body while the engine lives."""
    service = get_service(request)
    if service.llm.errored:
        raise ApiError(503, f"the engine is dead: {service.llm.dead_error}")
    return Response()


@router.get("/version")
async def version() -> Response:
    return json_response({"version": __version__})


@router.get("/load")
async def load(request: Request) -> Response:
    """HTTP requests for generation that are being answered."""
    return json_response({"server_load": get_service(request).load})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    return Response(get_service(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)
