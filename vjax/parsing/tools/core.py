"""The one parser of calls: text and white space between blocks here, the blocks themselves by the format's reader."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from vjax.parsing.pieces import Content, Piece, Reasoning, ToolArguments, ToolStart, joined
from vjax.parsing.tools.cursor import Cursor, Malformed, Step
from vjax.parsing.tools.typed import Schema

NAME = re.compile(r"[\w.:/@$-]+\Z")
MOST_BLOCKS = 2000  # of an answer, after which all is text
MOST_CALLS = 1000
MOST_KEYS = 1000  # of a call's arguments, where they are not JSON


@dataclass(frozen=True)
class Format:
    """One way of writing calls. `read` reads a block from its beginning, which is one of `starts`, or one of `bare`
    where the answer begins (`after`: or behind one of these); `drop` are tokens between blocks that are no text."""

    read: Callable[[Calls], Step[None]]
    starts: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    after: tuple[str, ...] = ("</think>",)
    drop: tuple[str, ...] = ()
    new_id: Callable[[], str] | None = None  # for calls, where the format's ids have a form of their own
    special: bool = False  # whether its markers are special tokens, which a decoder may skip


class Calls:
    """What a format's reader tells, and the cursor it reads from."""

    def __init__(self, tools: Iterable[dict[str, Any]], new_id: Callable[[], str] | None = None) -> None:
        self.cursor = Cursor()
        self._new_id = new_id
        self._schemas: dict[str, Schema] = {}
        self.count = 0
        self._functions = {f.get("name"): f for tool in tools if isinstance(f := tool.get("function"), dict)}
        self._pieces: list[Piece] = []
        self._arguments: list[str] = []
        self._keys = 0
        self._space: list[str] = []  # told only if text follows
        self.said = False  # any text yet
        self._after_call = False

    def schema(self, name: str) -> Schema | None:
        """The JSON schema of a tool's parameters; None for unknown tools."""
        if name in self._functions and name not in self._schemas:
            parameters = self._functions[name].get("parameters")
            self._schemas[name] = Schema(parameters, parameters)
        return self._schemas.get(name)

    def start(self, name: str, id: str | None = None) -> None:
        """A call begins. Raises `Malformed` for a name that cannot be one."""
        if not NAME.match(name) or self.count >= MOST_CALLS:
            raise Malformed
        if id is None and self._new_id is not None:
            id = self._new_id()
        self._flush()
        self._space.clear()
        self._pieces.append(ToolStart(self.count, name, id))
        self.count += 1
        self._keys = 0
        self._after_call = True
        self.cursor.settle()

    def arguments(self, text: str) -> None:
        """More of the last call's arguments."""
        if text:
            self._arguments.append(text)
        self.cursor.settle()

    def key(self, name: str) -> None:
        """The next of the last call's arguments, by name. Raises `Malformed` for one too many."""
        if self._keys == MOST_KEYS:
            raise Malformed
        self.arguments((", " if self._keys else "{") + json.dumps(name, ensure_ascii=False) + ": ")
        self._keys += 1

    def last_key(self) -> None:
        """There are no more arguments."""
        self.arguments("}" if self._keys else "{}")

    def say(self, text: str) -> None:
        """Text of the answer. White space at its end waits for what comes."""
        body = text.rstrip()
        if not body:
            self._space.append(text)
            return
        tail = text[len(body) :]
        if self._after_call and not self.said:
            body = body.lstrip()
        else:
            body = "".join(self._space) + body
        self._space = [tail]
        self.said, self._after_call = True, False
        self._flush()
        self._pieces.append(Content(body))

    def think(self, text: str) -> None:
        self._flush()
        if text:
            self._pieces.append(Reasoning(text))
        self.cursor.settle()

    def boundary(self) -> None:
        """A token between blocks: white space on either side of it is no text."""
        self._space.clear()
        self._after_call = True

    def end(self) -> None:
        """The text is over: white space behind text, or instead of any, is text as well."""
        space = "".join(self._space)
        if space and not self._after_call:
            self._flush()
            self._pieces.append(Content(space))

    def _flush(self) -> None:
        if self._arguments:
            self._pieces.append(ToolArguments(self.count - 1, "".join(self._arguments)))
            self._arguments.clear()

    def told(self) -> list[Piece]:
        """The pieces since the last time, neighbours of a kind in one."""
        self._flush()
        pieces = joined(self._pieces)
        self._pieces.clear()
        return pieces


class ToolParser:
    """A `vjax.parsing.pieces.Parser` for one answer in one format."""

    def __init__(self, format: Format, tools: Iterable[dict[str, Any]]) -> None:
        self._format = format
        self._calls = Calls(tools, format.new_id)
        self._stops = format.starts + format.drop + (format.after if format.bare else ())
        self._running = self._answer()
        next(self._running, None)

    def feed(self, text: str) -> list[Piece]:
        self._calls.cursor.add(text)
        next(self._running, None)
        return self._calls.told()

    def finish(self) -> list[Piece]:
        self._calls.cursor.ended = True
        for _ in self._running:
            pass
        self._calls.end()
        return self._calls.told()

    def _answer(self) -> Step[None]:
        calls, cursor, format = self._calls, self._calls.cursor, self._format
        bare, blocks = bool(format.bare), 0
        while True:
            try:
                if bare:
                    calls.say((yield from cursor.space()))
                    cursor.settle()
                    if (yield from cursor.sees(*format.bare)):
                        yield from format.read(calls)
                        calls.say(cursor.held())
                        bare = False
                        continue
                stop = yield from self._text()
                bare = stop in format.after and bool(format.bare)
                if stop in format.starts:
                    blocks += 1
                    if blocks == MOST_BLOCKS:
                        self._stops = format.drop
                    yield from format.read(calls)
                    calls.say(cursor.held())
                elif stop in format.drop:
                    cursor.take(len(stop))
                    cursor.settle()
                    calls.boundary()
                else:
                    calls.say(cursor.take(len(stop)))
                    cursor.settle()
            except Malformed:
                bare = False
                calls.say(cursor.held())
                if cursor.ended and cursor.pos >= len(cursor.text):
                    return

    def _text(self) -> Step[str]:
        """Tells text up to the next marker, which it leaves unread."""
        cursor = self._calls.cursor

        def say(text: str) -> None:
            self._calls.say(text)
            cursor.settle()

        if self._stops:
            return (yield from cursor.until(self._stops, say))
        while True:
            say(cursor.take(len(cursor.text) - cursor.pos))
            yield from cursor.more()
