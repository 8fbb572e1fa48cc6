"""The engine in a process of its own, which a front end starts, talks to and outlives.

Messages are msgpack frames with a length before them, over one Unix socket pair. On two busy CPU cores, 64
outputs a step, `python -m benches.ipc` gave:

    socket pair, asyncio streams   round trip 36-47 us, 99th percentile 90-102 us, 13-24 thousand steps/s
    pyzmq PAIR over ipc            round trip 69-149 us, 99th percentile 296-2823 us, 13-15 thousand steps/s
    multiprocessing pipe, thread   round trip 35-45 us, 99th percentile 79-211 us, 15-20 thousand steps/s

Pipe and socket pair are the same kernel object and equally fast, far beyond what a device can fill; the socket needs
no thread in the parent and never blocks its event loop.

A socket also settles who outlives whom: the kernel closes it when either side ends, however it ends. The child then
exits at once, even in the middle of a compilation; the parent fails its open requests. No heartbeat is needed.

The child is `python -m vjax.engine.process`, not a `multiprocessing` one, as that would run the caller's main module
again. It gets its options as the first message and shares standard error, where its progress shows.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Any, Protocol

import msgspec

from vjax import errors
from vjax.config import EngineConfig
from vjax.engine.messages import EngineLimits, EngineOutput, EngineRequest, EngineStats
from vjax.errors import EngineDeadError, VjaxError

log = logging.getLogger(__name__)

ENGINE = "vjax.engine.engine:Engine"
LENGTH = struct.Struct("<I")
STOP_TIMEOUT = 10.0  # seconds that a child gets to end by itself, then to end on SIGTERM


class Start(msgspec.Struct, tag=True, array_like=True):
    """The first message: what to build."""

    config: EngineConfig
    engine: str
    log_level: int


class Add(msgspec.Struct, tag=True, array_like=True):
    requests: list[EngineRequest]


class Abort(msgspec.Struct, tag=True, array_like=True):
    request_ids: list[str]


class Call(msgspec.Struct, tag=True, array_like=True):
    """Run a method without arguments of the engine; `Reply` bears the same number."""

    number: int
    method: str


class Stop(msgspec.Struct, tag=True, array_like=True):
    pass


class Ready(msgspec.Struct, tag=True, array_like=True):
    limits: EngineLimits


class Turn(msgspec.Struct, tag=True, array_like=True):
    """What one turn of the loop gave."""

    outputs: list[EngineOutput]
    stats: EngineStats


class Reply(msgspec.Struct, tag=True, array_like=True):
    number: int
    value: Any = None
    error: str | None = None


class Log(msgspec.Struct, tag=True, array_like=True):
    """A log record of the child, for the parent's handlers."""

    name: str
    level: int
    text: str


class Fatal(msgspec.Struct, tag=True, array_like=True):
    """The engine could not start or go on; nothing follows."""

    kind: str
    text: str


ToEngine = Start | Add | Abort | Call | Stop
ToFrontend = Ready | Turn | Reply | Log | Fatal
CALLABLE = {"reset_prefix_cache"}


class Core(Protocol):
    """What the loop needs of an engine; `vjax.engine.engine.Engine` is one."""

    limits: EngineLimits

    @property
    def has_work(self) -> bool: ...
    def add(self, request: EngineRequest) -> None: ...
    def abort(self, request_ids: Iterable[str]) -> None: ...
    def step(self) -> list[EngineOutput]: ...
    def stats(self) -> EngineStats: ...
    def reset_prefix_cache(self) -> bool: ...
    def shutdown(self) -> None: ...


# The parent's side.


class EngineProcess:
    """Starts the child and speaks with it, from one asyncio event loop."""

    def __init__(self, config: EngineConfig, engine: str = ENGINE) -> None:
        self.config, self.engine = config, engine
        self.stats = EngineStats()
        self._child: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToFrontend)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._stopping = False

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def start(self) -> EngineLimits:
        """Returns when the engine is ready. Raises the error that kept it from it."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._send(Start(self.config, self.engine, logging.getLogger("vjax").getEffectiveLevel()))
        async for message in self._messages():
            if isinstance(message, Ready):
                return message.limits
        raise EngineDeadError("the engine was stopped before it was ready.")

    def add(self, requests: list[EngineRequest]) -> None:
        self._send(Add(requests))

    def abort(self, request_ids: list[str]) -> None:
        if request_ids:
            self._send(Abort(request_ids))

    async def call(self, method: str) -> Any:
        """The result of one of the engine's methods, run between two steps. Raises `EngineDeadError`."""
        if self._writer is None or self._writer.is_closing():
            raise EngineDeadError("the engine is not running.")
        number = max(self._calls, default=0) + 1
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        self._send(Call(number, method))
        try:
            return await future
        finally:
            self._calls.pop(number, None)

    async def outputs(self) -> AsyncIterator[list[EngineOutput]]:
        """What each step gave, until `stop`. Raises `EngineDeadError` when the child ends unasked."""
        try:
            async for message in self._messages():
                if isinstance(message, Turn):
                    self.stats = message.stats
                    if message.outputs:
                        yield message.outputs
                elif isinstance(message, Reply):
                    self._settle(message)
        except VjaxError as error:
            raise EngineDeadError(f"the engine died: {error}") from error
        finally:
            if self._writer is not None:
                self._writer.close()
            for future in self._calls.values():
                if not future.done():
                    future.set_exception(EngineDeadError("the engine stopped."))

    async def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """End the child: asked, then SIGTERM, then SIGKILL. Harmless when it never started or ended already."""
        self._stopping = True
        child = self._child
        if child is None:
            return
        self._send(Stop())
        for signal_child in (child.terminate, child.kill, None):
            try:
                await asyncio.to_thread(child.wait, timeout)
                break
            except subprocess.TimeoutExpired:
                assert signal_child is not None
                signal_child()
                timeout = max(timeout, 1.0)
        if self._writer is not None:
            self._writer.close()

    async def _messages(self) -> AsyncIterator[Any]:
        assert self._reader is not None
        while True:
            try:
                (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                message = self._decoder.decode(await self._reader.readexactly(size))
            except (asyncio.IncompleteReadError, OSError):
                if self._stopping:
                    return
                raise EngineDeadError(await self._obituary()) from None
            if isinstance(message, Fatal):
                raise _revive(message)
            if isinstance(message, Log):
                logging.getLogger(message.name).log(message.level, "%s", message.text)
            else:
                yield message

    async def _obituary(self) -> str:
        assert self._child is not None
        try:
            code = await asyncio.to_thread(self._child.wait, 5.0)
        except subprocess.TimeoutExpired:
            return "the engine process closed its connection."
        if code < 0:
            return f"the engine process was killed by {signal.Signals(-code).name}."
        return f"the engine process exited with code {code}."

    def _settle(self, reply: Reply) -> None:
        future = self._calls.get(reply.number)
        if future is None or future.done():
            return
        if reply.error is None:
            future.set_result(reply.value)
        else:
            future.set_exception(VjaxError(reply.error))

    def _send(self, message: ToEngine) -> None:
        """Never blocks: what the child has not read yet waits in this process."""
        if self._writer is None or self._writer.is_closing():
            return
        data = self._encoder.encode(message)
        self._writer.write(LENGTH.pack(len(data)) + data)


def _revive(fatal: Fatal) -> VjaxError:
    """The child's error as the class that it had there."""
    kind = getattr(errors, fatal.kind, None)
    if isinstance(kind, type) and issubclass(kind, VjaxError):
        return kind(fatal.text)
    return EngineDeadError(f"{fatal.kind}: {fatal.text}")


# The child's side.


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
    if isinstance(message, Add):
        for request in message.requests:
            try:
                engine.add(request)
            except Exception as error:
                if not isinstance(error, VjaxError):
                    log.exception("request %s could not be added", request.request_id)
                refused.append(EngineOutput(request.request_id, [], finish_reason="error", error=str(error)))
    elif isinstance(message, Abort):
        engine.abort(message.request_ids)
    elif isinstance(message, Call):
        reply = Reply(message.number)
        try:
            if message.method not in CALLABLE:
                raise VjaxError(f"the engine has no method {message.method!r}.")
            reply.value = getattr(engine, message.method)()
        except Exception as error:
            reply.error = f"{message.method} failed: {error}"
        link.send(reply)
    return refused


def main(fd: int) -> int:
    """The child: build the engine that the first message names, serve, report what ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
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
    except BrokenPipeError:
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
