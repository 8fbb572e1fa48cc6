"""Routes for operators: caches, sleep, pauses, traces. All are 404s without `--enable-server-dev-mode`."""

from __future__ import annotations

import dataclasses
import platform
import re
import sys
from importlib import metadata
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import HTTPException
from fastapi.responses import Response
from pydantic import BaseModel

from vjax.serving.dependencies import get_service, read_json
from vjax.serving.errors import ApiError
from vjax.serving.responses import json_response
from vjax.serving.service import Service
from vjax.version import __version__

PATHS = (
    "/server_info", "/reset_prefix_cache", "/abort_requests", "/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume",
    "/is_paused", "/start_profile", "/stop_profile",
)  # fmt: skip
HIDDEN = {"api_key", "ssl_keyfile_password"}


async def _operates(request: Request) -> None:
    if not get_service(request).options.enable_server_dev_mode:
        raise HTTPException(404, "Not Found")


router = APIRouter(dependencies=[Depends(_operates)])


@router.get("/server_info")
async def server_info(request: Request, config_format: Literal["text", "json"] = "text") -> Response:
    """The options of engine and server, without keys, and what they run on."""
    service = get_service(request)
    options = {name: value for name, value in dataclasses.asdict(service.options).items() if name not in HIDDEN}
    config: dict[str, Any] = {"engine": dataclasses.asdict(service.llm.config), "server": options}
    system = {
        "vjax": __version__,
        "python": sys.version.split()[0],
        "jax": metadata.version("jax"),
        "os": platform.platform(),
    }
    shown = config if config_format == "json" else str(config)
    return json_response({"vjax_config": shown, "system_env": system})


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request, reset_running_requests: bool = False) -> Response:
    """`success` is false while requests hold pages, unless those are told to compute theirs again."""
    return json_response({"success": await get_service(request).llm.reset_prefix_cache(reset_running_requests)})


class AbortRequest(BaseModel):
    request_ids: list[str]


@router.post("/abort_requests", dependencies=[read_json])
async def abort_requests(request: Request, body: AbortRequest) -> Response:
    """End requests by the ids of their answers, or all with an empty list; those unknown are passed over."""
    service = get_service(request)
    found = [one for one in service.running if not body.request_ids or _is_of(one, body.request_ids)]
    service.llm.abort(found)
    return json_response({"aborted": len(found)})


def _is_of(running: str, given: list[str]) -> bool:
    """Whether one of the engine's ids was made of one of these: a prompt's place and random characters follow."""
    return any(
        running.startswith(id) and re.match(r"(-\d+)?-[0-9a-f]{8}", running[len(id) :]) is not None for id in given
    )


async def _settle(service: Service, mode: str) -> None:
    """What happens to open requests before a pause."""
    if mode == "abort":
        service.abort_all()
    if mode != "keep":
        await service.llm.wait_idle()


@router.post("/sleep")
async def sleep(
    request: Request,
    level: Annotated[int, Query(ge=1, le=2)] = 1,
    mode: Literal["abort", "wait", "keep"] = "abort",
) -> Response:
    """Give the device's memory back. `keep`: what runs is computed again after `/wake_up`."""
    service = get_service(request)
    if service.llm.pooling is not None:
        raise ApiError(501, "an engine that encodes does not sleep.")
    if service.llm.stats().sleep_level:
        raise ApiError(409, "the engine sleeps already: POST /wake_up first.")
    paused = not service.unpaused.is_set()
    service.unpaused.clear()  # new requests wait here until the engine sleeps, and there from then on
    try:
        await _settle(service, mode)
        await service.llm.sleep(level)
    finally:
        if not paused:
            service.unpaused.set()
    return Response()


@router.post("/wake_up")
async def wake_up(
    request: Request, tags: Annotated[list[Literal["weights", "kv_cache"]] | None, Query()] = None
) -> Response:
    """Take memory for both tags, or those that are given; requests run once both have it."""
    await get_service(request).llm.wake_up(None if tags is None else [*tags])
    return Response()


@router.get("/is_sleeping")
async def is_sleeping(request: Request) -> Response:
    return json_response({"is_sleeping": get_service(request).llm.stats().sleep_level > 0})


@router.post("/pause")
async def pause(request: Request, mode: Literal["abort", "wait"] = "abort") -> Response:
    """Let no request start until `/resume`; those that run are aborted, or waited for."""
    service = get_service(request)
    service.unpaused.clear()
    await _settle(service, mode)
    return json_response({"status": "paused"})


@router.post("/resume")
async def resume(request: Request) -> Response:
    get_service(request).unpaused.set()
    return json_response({"status": "resumed"})


@router.get("/is_paused")
async def is_paused(request: Request) -> Response:
    return json_response({"is_paused": not get_service(request).unpaused.is_set()})


@router.post("/start_profile")
async def start_profile(request: Request) -> Response:
    """Trace JAX and the device into `--profile-dir`."""
    service = get_service(request)
    if service.options.profile_dir is None:
        raise ApiError(400, "start the server with --profile-dir FOLDER to write traces.")
    if service.profiling:
        raise ApiError(409, "a trace is being written already: POST /stop_profile first.")
    service.profiling = True
    try:
        await service.llm.start_profile(service.options.profile_dir)
    except BaseException:
        service.profiling = False
        raise
    return Response()


@router.post("/stop_profile")
async def stop_profile(request: Request) -> Response:
    service = get_service(request)
    if not service.profiling:
        raise ApiError(409, "no trace is being written: POST /start_profile first.")
    service.profiling = False
    await service.llm.stop_profile()
    return Response()
