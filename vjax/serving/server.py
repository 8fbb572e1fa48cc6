"""Runs the server: takes the port, starts the engine, serves until a signal or the engine's death."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from pathlib import Path

import uvicorn

from vjax.config import EngineConfig
from vjax.errors import VjaxError
from vjax.frontend.async_llm import AsyncLLM
from vjax.serving.app import build_app
from vjax.serving.options import ServerOptions

log = logging.getLogger("vjax.serving")


def serve(config: EngineConfig, options: ServerOptions) -> int:
    """Blocks. Returns the process's exit code: 0 after a signal, 1 if the engine died. Raises `VjaxError` for what
    keeps it from starting."""
    template = _read_template(options.chat_template)
    listener = bind(options)  # before the model is loaded: a taken port should not cost a minute
    try:
        return asyncio.run(_serve(config, options, listener, template))
    finally:
        listener.close()
        if options.uds:
            Path(options.uds).unlink(missing_ok=True)


def bind(options: ServerOptions) -> socket.socket:
    """The listening socket. Raises `VjaxError` if it cannot be had."""
    if options.uds:
        family, address, shown = socket.AF_UNIX, options.uds, options.uds
    else:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        address, shown = (options.host, options.port), f"{options.host}:{options.port}"  # type: ignore[assignment]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if not options.uds:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise VjaxError(
            f"cannot listen on {shown}: {reason}. Is another server running? Choose another --port."
        ) from None
    return listener


async def _serve(
    config: EngineConfig, options: ServerOptions, listener: socket.socket, template: str | None
) -> int:  # fmt: skip
    llm = AsyncLLM(config)
    await llm.start()
    names = options.served_model_name or [config.model]
    app = build_app(llm, options, names, template)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level=options.uvicorn_log_level,
            access_log=not options.disable_uvicorn_access_log,
            timeout_graceful_shutdown=options.shutdown_timeout,
            ssl_keyfile=options.ssl_keyfile,
            ssl_certfile=options.ssl_certfile,
        )
    )

    async def end_with_the_engine() -> None:
        error = await llm.wait_dead()
        print(f"vjax: error: {error}", file=sys.stderr, flush=True)
        server.should_exit = True

    watch = asyncio.create_task(end_with_the_engine())
    where = options.uds or f"http{'s' if options.ssl_certfile else ''}://{options.host}:{options.port}/v1"
    print(f"Serving {names[0]} at {where}", file=sys.stderr, flush=True)
    try:
        await server.serve(sockets=[listener])
    finally:
        watch.cancel()
        await llm.shutdown()
    return 1 if llm.is_dead else 0


def _read_template(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise VjaxError(f"--chat-template {path}: cannot be read ({error}).") from None
