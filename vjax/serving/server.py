"""The life of a server: take the port, start the engine, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from vjax.config import EngineConfig
from vjax.errors import EngineDeadError, VjaxError
from vjax.frontend.async_llm import AsyncLLM
from vjax.serving.app import build_app
from vjax.serving.logs import log_stats, set_up_logging
from vjax.serving.options import ServerOptions
from vjax.serving.service import Service

log = logging.getLogger(__name__)

BACKLOG = 2048
LAST_WORDS = 2  # seconds to send the ends of requests that were aborted at the end of the drain
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(config: EngineConfig, options: ServerOptions, llm: AsyncLLM | None = None) -> int:
    """Serve until a signal (0), or until the engine dies (1). `llm` replaces the engine made from `config`.

    Raises `VjaxError` when the address is taken or the engine does not start.
    """
    set_up_logging()
    with contextlib.closing(listen(options)) as sock:
        return asyncio.run(_Life(llm or AsyncLLM(config), options).run(sock))


def listen(options: ServerOptions) -> socket.socket:
    """A listening socket. Raises `VjaxError` when the address is taken or not ours.

    Listening before the model is loaded, not only binding, is what keeps a second server off the port.
    """
    if options.uds is not None:
        return _listen_unix(options.uds)
    where = f"{options.host}:{options.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise VjaxError(f"cannot listen on {where}: {error.strerror}. Choose another --host.") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by connections. Without it the kernel keeps a body or an event back until the client confirms what
        # was sent before, which clients put off for 40 ms.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise VjaxError(f"cannot listen on {where}: {error.strerror}. Choose another --port.") from None
    return sock


def _listen_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if Path(path).exists():
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                raise VjaxError(f"--uds: {path} exists and is not a socket.")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(path) == 0:
                    raise VjaxError(f"--uds: another server listens on {path}.")
            os.unlink(path)  # left by a server that was killed
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise VjaxError(f"--uds: cannot listen on {path}: {error.strerror}.") from None
    except VjaxError:
        sock.close()
        raise
    return sock


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: theirs end the process before the engine is stopped."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override]
        yield


class _Life:
    """A server from its start to its end."""

    def __init__(self, llm: AsyncLLM, options: ServerOptions) -> None:
        self.llm, self.options = llm, options
        self.app = build_app(llm, options, ready=False)
        self.service: Service = self.app.state.service
        self.server = _Server(self._uvicorn_config())
        self._starting: asyncio.Task[None] | None = None
        self._signals = 0

    def _uvicorn_config(self) -> uvicorn.Config:
        options = self.options
        config = uvicorn.Config(
            self.app,
            log_level=options.uvicorn_log_level,
            access_log=not options.disable_uvicorn_access_log,
            ssl_keyfile=options.ssl_keyfile,
            ssl_certfile=options.ssl_certfile,
            timeout_graceful_shutdown=options.shutdown_timeout + LAST_WORDS,
            lifespan="off",
        )
        try:
            config.load()
        except (OSError, ValueError) as error:
            raise VjaxError(f"--ssl-keyfile, --ssl-certfile: {error}.") from None
        return config

    async def run(self, sock: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        for one in SIGNALS:
            loop.add_signal_handler(one, self._on_signal)
        serving = asyncio.create_task(self.server.serve([sock]))
        watchers: list[asyncio.Task[Any]] = []
        try:
            if await self._start():
                watchers.append(asyncio.create_task(log_stats(self.service)))
                watchers.append(asyncio.create_task(self._watch_engine()))
                log.info("ready: %s on %s", ", ".join(self.service.names), self._address(sock))
            await serving
        finally:
            self.server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            for watcher in watchers:
                watcher.cancel()
            await self.llm.shutdown()
            if self.options.uds is not None:
                Path(self.options.uds).unlink(missing_ok=True)
        return 1 if self.llm.errored else 0

    async def _start(self) -> bool:
        """Whether the engine started; False when a signal came first."""
        self._starting = asyncio.create_task(self.llm.start())
        try:
            await self._starting
        except asyncio.CancelledError:
            if self._signals:
                return False
            raise
        finally:
            self._starting = None
        self.service.open()
        return True

    async def _watch_engine(self) -> None:
        error: EngineDeadError = await self.llm.wait_dead()
        log.error("%s The server ends.", error)
        self.server.should_exit = True

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals > 1:
            self.server.force_exit = True
            self.service.abort_all()
            return
        self.server.should_exit = True
        if self._starting is not None:
            self._starting.cancel()
            return
        if self.service.load:
            log.info("waiting up to %d s for %d requests", self.options.shutdown_timeout, self.service.load)
        asyncio.get_running_loop().call_later(self.options.shutdown_timeout, self.service.abort_all)

    def _address(self, sock: socket.socket) -> str:
        if self.options.uds is not None:
            return self.options.uds
        host, port, *_ = sock.getsockname()
        scheme = "https" if self.options.ssl_certfile else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
