"""Answers as messages with headers: Harmony's channels, and the blocks of models that write alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from vjax.parsing.tools.core import Calls
from vjax.parsing.tools.cursor import Malformed, Step
from vjax.parsing.tools.literal import JSON, literal

RECIPIENT = re.compile(r"\bto=([^\s<]+)")
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


@dataclass(frozen=True)
class Channels:
    """Reads a header, up to `<|message|>`, and what follows: thoughts, or the arguments of a call to a function. Text
    of the answer is left to the parser, which drops the `ends`."""

    ends: tuple[str, ...]
    calls_in_body: bool = False  # the body has its own markup for calls

    def __call__(self, calls: Calls) -> Step[None]:
        cursor = calls.cursor
        header, _ = yield from cursor.header("<|message|>")
        recipient = (RECIPIENT.findall(header) or [""])[-1]
        channel = (CHANNEL.findall(header) or [""])[-1]
        stops = (*self.ends, "<|start|>", "<|channel|>")
        if recipient in ("", "assistant", "user", "all", "self") or self.calls_in_body:
            cursor.settle()
            if channel == "analysis" or recipient == "self":
                yield from cursor.until(stops, calls.think)
            return
        yield from cursor.space()
        first = yield from cursor.sees("{", *stops)
        if not first:
            raise Malformed
        calls.start(recipient.removeprefix("functions."))
        if first == "{":
            yield from literal(cursor, JSON, calls.arguments)
        else:
            calls.arguments("{}")
        yield from cursor.closing(*self.ends)


def headers(*stops: str) -> Callable[[Calls], Step[None]]:
    """Passes over a header, up to one of these."""

    def read(calls: Calls) -> Step[None]:
        _, stop = yield from calls.cursor.header(*stops)
        calls.cursor.pos -= len(stop)
        calls.cursor.settle()

    return read


def thoughts(start: str, *ends: str) -> Callable[[Calls], Step[None]]:
    """Reads a block of reasoning."""

    def read(calls: Calls) -> Step[None]:
        yield from calls.cursor.expect(start)
        calls.cursor.settle()
        yield from calls.cursor.until(ends, calls.think)

    return read
