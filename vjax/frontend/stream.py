"""What lies between the output loop and one consumer: at most one output, into which later ones are merged."""

from __future__ import annotations

import asyncio

from vjax.frontend.outputs import merge_outputs
from vjax.outputs import RequestOutput


class Stream:
    """The newest news of a request. Never blocks the producer, never grows a queue."""

    __slots__ = ("_delta", "_error", "_event", "_pending")

    def __init__(self, delta: bool) -> None:
        self._delta = delta
        self._pending: RequestOutput | None = None
        self._error: Exception | None = None
        self._event = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        old = self._pending
        self._pending = output if old is None else merge_outputs(old, output, delta=self._delta)
        self._event.set()

    def fail(self, error: Exception) -> None:
        """`get` raises this once the pending output was taken."""
        self._error = error
        self._event.set()

    async def get(self) -> RequestOutput:
        await self._event.wait()
        if self._pending is not None:
            output, self._pending = self._pending, None
            if self._error is None:
                self._event.clear()
            return output
        assert self._error is not None
        raise self._error
