"""Answers of the Responses API that are kept: a bounded number of bytes, the one used longest ago going first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from vjax.serving.errors import ApiError
from vjax.serving.responses_output import Event, Reply

OVERHEAD = 512  # bytes of an entry, and a part of it of each event


class Stored:
    """An answer with its conversation. One in the background also has a task, and its events if they are streamed."""

    def __init__(self, reply: Reply, messages: list[dict[str, Any]]) -> None:
        self.reply, self.messages = reply, messages
        self.size = 0
        self.events: list[bytes] | None = None
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def tell(self, event: Event) -> int:
        """Keep an event for streams; its bytes."""
        added = 0
        if self.events is not None:
            self.events.append(msgspec.json.encode(event))
            added = len(self.events[-1]) + OVERHEAD // 8
        self._news.set()
        self._news = asyncio.Event()
        return added

    async def follow(self, after: int = -1) -> AsyncGenerator[Event, None]:
        """Events behind number `after`, until the answer is over."""
        at = max(after + 1, 0)
        while True:
            news, events = self._news, self.events or []
            for line in events[at:]:
                yield msgspec.json.decode(line)
            at = max(at, len(events))
            if self.reply.over and at >= len(self.events or []):
                return
            if news is self._news:
                await news.wait()


class ResponseStore:
    def __init__(self, limit: int) -> None:
        """`limit` in bytes; 0 keeps nothing."""
        self.limit, self.size = limit, 0
        self._kept: OrderedDict[str, Stored] = OrderedDict()

    @property
    def enabled(self) -> bool:
        return self.limit > 0

    def get(self, id: str, param: str = "response_id") -> Stored:
        """Raises a 404 for one that is not there, or no longer."""
        found = self._kept.get(id)
        if found is None:
            where = "" if self.enabled else " Nothing is, without --responses-store."
            raise ApiError(404, f"The response {id!r} is not stored.{where}", param, "invalid_request_error")
        self._kept.move_to_end(id)
        return found

    def add(self, stored: Stored) -> None:
        """Raises a 503 when it does not fit."""
        self._kept[stored.reply.id] = stored
        try:
            self.measure(stored)
        except ApiError:
            self.remove(stored.reply.id)
            raise

    def measure(self, stored: Stored) -> None:
        """Count an answer again after it grew."""
        events = sum(len(event) + OVERHEAD // 8 for event in stored.events or ())
        body = len(msgspec.json.encode([stored.reply.response, stored.messages]))
        self.grow(stored, OVERHEAD + body + events - stored.size)

    def grow(self, stored: Stored, size: int) -> None:
        if self._kept.get(stored.reply.id) is not stored:
            return
        stored.size += size
        self.size += size
        for id, other in list(self._kept.items()):
            if self.size <= self.limit:
                return
            if other is not stored and other.reply.over:
                self.remove(id)
        if self.size > self.limit:
            raise ApiError(503, f"the answer does not fit into --responses-store ({self.limit} bytes).")

    def remove(self, id: str) -> None:
        stored = self._kept.pop(id)
        self.size -= stored.size
        if stored.task is not None:
            stored.task.cancel()
