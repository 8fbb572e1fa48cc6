"""The engine in a process of its own, which a front end starts, talks to and outlives.

Messages are msgpack frames with a length before them, over one Unix socket pair. On two busy CPU cores, 64 outputs a
step, three runs of `python -m benches.ipc` gave:

    socket pair, asyncio streams   round trip 36-47 us, 99th percentile 90-103 us, 13-25 thousand steps/s
    pyzmq PAIR over ipc            round trip 69-149 us, 99th percentile 296-3718 us, 10-15 thousand steps/s
    multiprocessing pipe, thread   round trip 33-45 us, 99th percentile 68-211 us, 15-20 thousand steps/s

Pipe and socket pair are the same kernel object and equally fast, far beyond what a device can fill; the socket needs
no thread in the parent and never blocks its event loop.

A socket also settles who outlives whom: the kernel closes it when either side ends, however it ends. The child then
exits at once, even in the middle of a compilation; the parent fails its open requests. No heartbeat is needed.

The child is `python -m vjax.engine.child`, not a `multiprocessing` one, as that would run the caller's main module
again. It gets its options as the first message and shares standard error, where its progress shows.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from vjax import errors
from vjax.config import EngineConfig
from vjax.engine.messages import EngineLimits, EngineOutput, EngineRequest, EngineStats, PoolRequest, Vocabulary
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
from vjax.errors import EngineDeadError, VjaxError

ENGINE = "vjax.engine.kinds:make_engine"
CHILD = "vjax.engine.child"
STOP_TIMEOUT = 10.0  # seconds that a child gets to end by itself


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
                [sys.executable, "-m", CHILD, str(theirs.fileno())],
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

    def pool(self, requests: list[PoolRequest]) -> None:
        self._send(Pool(requests))

    def abort(self, request_ids: list[str]) -> None:
        if request_ids:
            self._send(Abort(request_ids))

    def teach(self, vocabulary: Vocabulary) -> None:
        """Must come before the first request with a grammar."""
        self._send(vocabulary)

    async def call(self, method: str, *arguments: Any) -> Any:
        """The result of one of the engine's methods, run between two steps. Raises `EngineDeadError`."""
        if self._writer is None or self._writer.is_closing():
            raise EngineDeadError("the engine is not running.")
        number = max(self._calls, default=0) + 1
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        self._send(Call(number, method, list(arguments)))
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
        """End the child: asked, then by SIGKILL. Harmless when it never started or ended already."""
        self._stopping = True
        child = self._child
        if child is None:
            return
        self._send(Stop())
        try:
            await asyncio.to_thread(child.wait, timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            await asyncio.to_thread(child.wait)
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
