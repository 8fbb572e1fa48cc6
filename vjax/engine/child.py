"""The engine's process: a loop that reads requests from a socket, steps the engine, and sends what came out."""

from __future__ import annotations

import importlib
import logging
import os
import queue
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from vjax.engine.messages import EngineLimits, EngineOutput, EngineStats, Vocabulary
from vjax.engine.wire import (
    LENGTH,
    Abort,
    Add,
    Call,
    Fatal,
    Log,
    Pool,
    Ready,
    Reply,
    Start,
    Stop,
    ToEngine,
    ToFrontend,
    Turn,
)
from vjax.errors import VjaxError

log = logging.getLogger("vjax.engine.child")

CALLABLE = {"reset_prefix_cache", "sleep", "wake_up", "start_profile", "stop_profile"}


class Core(Protocol):
    """What the loop needs of an engine; `vjax.engine.engine.Engine` is one."""

    limits: EngineLimits

    @property
    def has_work(self) -> bool: ...
    def teach(self, vocabulary: Vocabulary) -> None: ...
    def add(self, request: Any) -> None: ...  # EngineRequest, or PoolRequest where it encodes
    def abort(self, request_ids: Iterable[str]) -> None: ...
    def step(self) -> list[EngineOutput]: ...
    def stats(self) -> EngineStats: ...
    def reset_prefix_cache(self, preempt: bool = False) -> bool: ...
    def sleep(self, level: int = 1) -> None: ...
    def wake_up(self, tags: list[str] | None = None) -> bool: ...
    def start_profile(self, folder: str) -> None: ...
    def stop_profile(self) -> None: ...
    def shutdown(self) -> None: ...


class Link:
    """The child's end of the socket. A thread reads; any thread may send."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._stream = sock, sock.makefile("rb")
        self._inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()
        threading.Thread(target=self._read, name="vjax-inbox", daemon=True).start()

    def receive(self, wait: bool) -> Iterable[ToEngine]:
        """All messages that are there; with `wait`, at least one."""
        try:
            while True:
                yield self._inbox.get(block=wait)
                wait = False
        except queue.Empty:
            return

    def send(self, message: ToFrontend) -> None:
        """Blocks while the parent does not read, so that a slow front end slows the engine instead of its memory
        growing."""
        with self._lock:
            data = self._encoder.encode(message)
            self._socket.sendall(LENGTH.pack(len(data)) + data)

    def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(ToEngine)
        try:
            while header := self._stream.read(LENGTH.size):
                (size,) = LENGTH.unpack(header)
                self._inbox.put(decoder.decode(self._stream.read(size)))
        except (OSError, struct.error, msgspec.DecodeError):
            pass
        # The parent is gone, and what it asked for with it. The main thread may be hours from looking.
        os._exit(1)


class _Forward(logging.Handler):
    """Hands log records to the parent."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._link.send(Log(record.name, record.levelno, self.format(record)))
        except OSError:
            self.handleError(record)


def run_loop(engine: Core, link: Link) -> None:
    """Serve until a `Stop`."""
    while True:
        spoke = False
        for message in link.receive(wait=not engine.has_work):
            if isinstance(message, Stop):
                return
            spoke = True
            refused = _handle(engine, link, message)
            if refused:
                link.send(Turn(refused, engine.stats()))
        outputs = engine.step() if engine.has_work else []
        if outputs or spoke:
            link.send(Turn(outputs, engine.stats()))


def _handle(engine: Core, link: Link, message: ToEngine) -> list[EngineOutput]:
    """Returns the last words on requests that the engine refused."""
    refused = []
    if isinstance(message, Add | Pool):
        for request in message.requests:
            try:
                engine.add(request)
            except Exception as error:
                if not isinstance(error, VjaxError):
                    log.exception("request %s could not be added", request.request_id)
                refused.append(EngineOutput(request.request_id, [], finish_reason="error", error=str(error)))
    elif isinstance(message, Vocabulary):
        engine.teach(message)
    elif isinstance(message, Abort):
        engine.abort(message.request_ids)
    elif isinstance(message, Call):
        reply = Reply(message.number)
        try:
            if message.method not in CALLABLE:
                raise VjaxError(f"the engine has no method {message.method!r}.")
            reply.value = getattr(engine, message.method)(*message.arguments)
        except Exception as error:
            reply.error = f"{message.method} failed: {error}"
        link.send(Turn([], engine.stats()))  # whoever waits for the reply finds the gauges as it left them
        link.send(reply)
    return refused


def main(fd: int) -> int:
    """The child: build the engine that the first message names, serve, report what ends it."""
    # Ctrl-C and a service manager's SIGTERM go to the whole group. The parent decides; when it ends, so does the child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.dup2(2, 1)  # standard output belongs to the parent
    link = Link(socket.socket(fileno=fd))
    start = next(iter(link.receive(wait=True)))
    assert isinstance(start, Start)
    logger = logging.getLogger("vjax")
    logger.setLevel(start.log_level)
    logger.addHandler(_Forward(link))
    logger.propagate = False
    try:
        module, _, name = start.engine.partition(":")
        engine: Core = getattr(importlib.import_module(module), name)(start.config)
        link.send(Ready(engine.limits))
        run_loop(engine, link)
        engine.shutdown()
        return 0
    except (BrokenPipeError, ConnectionResetError):
        return 1
    except BaseException as error:
        if not isinstance(error, VjaxError):
            logger.exception("the engine failed")
        link.send(Fatal(type(error).__name__, str(error)))
        return 1


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stderr.flush()
    os._exit(code)  # not waiting for graphs that are being compiled
