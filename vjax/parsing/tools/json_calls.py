"""Calls as JSON objects: one, a list of them, or several in a row."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from vjax.parsing.tools.core import Calls
from vjax.parsing.tools.cursor import Cursor, Malformed, Step
from vjax.parsing.tools.literal import JSON, literal

MOST_KEYS = 32  # of the object that holds name and arguments


@dataclass(frozen=True)
class JsonCalls:
    """`opens` stand before the JSON, in this order, each optional; `closes` behind it; `between` objects in a row.
    With `by_name` an object is `{name: arguments}`."""

    opens: tuple[tuple[str, ...], ...] = ()
    closes: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    names: tuple[str, ...] = ("name", "tool_name")
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: str = ""
    by_name: bool = False

    def __call__(self, calls: Calls) -> Step[None]:
        cursor = calls.cursor
        marked = False
        for opens in self.opens:
            marked |= bool((yield from cursor.skip(*opens)))
            yield from cursor.space()
        yield from self._values(calls, marked)
        for close in self.closes:
            yield from cursor.closing(close)

    def _values(self, calls: Calls, marked: bool) -> Step[None]:
        cursor = calls.cursor
        while True:
            before = calls.count
            if (yield from cursor.skip("[")):
                yield from self._list(calls, marked)
            else:
                yield from self._call(calls, marked)
            if calls.count > before:
                cursor.settle()
            if not self.between:
                return
            yield from cursor.space()
            separator = yield from cursor.skip(*self.between)
            yield from cursor.space()
            if separator:
                yield from cursor.skip(*(open for opens in self.opens for open in opens))
                yield from cursor.space()
            if not (yield from cursor.sees("{")):
                return

    def _list(self, calls: Calls, marked: bool) -> Step[None]:
        cursor = calls.cursor
        while True:
            yield from cursor.space()
            if (yield from cursor.skip("]")):
                return
            yield from self._call(calls, marked)
            cursor.settle()
            yield from cursor.space()
            if (yield from cursor.expect(",", "]")) == "]":
                return

    def _call(self, calls: Calls, marked: bool) -> Step[None]:
        call = _Call(calls, eager=marked)
        yield from calls.cursor.expect("{")
        yield from self._object(call)
        if not call.started:
            if not call.name or not (marked or call.held):
                raise Malformed
            call.start()
        if not call.told:
            calls.arguments("{}")

    def _object(self, call: _Call, nested: bool = False) -> Step[None]:
        cursor = call.calls.cursor
        for _ in range(MOST_KEYS):
            yield from cursor.space()
            if (yield from cursor.skip("}")):
                return
            key = yield from _string(cursor)
            yield from cursor.space()
            yield from cursor.expect(":")
            yield from cursor.space()
            if self.by_name and not call.name:
                call.name = key
                yield from call.read_arguments()
            elif key == "function" and not nested and (yield from cursor.skip("{")):
                yield from self._object(call, nested=True)
            elif key in (*self.names, "function") and not call.name:
                call.name = yield from _string(cursor)
                if call.eager or call.held:
                    call.start()
            elif key in self.arguments and not call.told:
                yield from call.read_arguments()
            else:
                value = yield from _any(cursor)
                if self.id and key == self.id:
                    call.id = value.strip('"')
            yield from cursor.space()
            if (yield from cursor.expect(",", "}")) == "}":
                return
        raise Malformed


@dataclass
class _Call:
    """What is known of a call so far. Arguments that come before the name wait for it."""

    calls: Calls
    eager: bool  # start as soon as the name is known; where JSON may be text as well, not before its arguments
    name: str = ""
    id: str | None = None
    started: bool = False
    told: bool = False
    held: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.calls.start(self.name, self.id)
        self.started = True
        if self.held:
            self.calls.arguments("".join(self.held))
            self.told = True

    def read_arguments(self) -> Step[None]:
        """Reads the object of arguments, also one in a string, or null for none."""
        cursor = self.calls.cursor
        first = yield from cursor.sees("{", '"', "null")
        if first == "{":
            if self.name and not self.started:
                self.start()
            if self.started:
                yield from literal(cursor, JSON, self.calls.arguments)
                self.told = True
            else:
                yield from literal(cursor, JSON, self.held.append)
        elif first == '"':
            text = yield from _string(cursor)
            self.held = [_object_in(text)]
        elif first == "null":
            yield from cursor.skip("null")
            self.held = ["{}"]
        else:
            raise Malformed
        if self.name and self.held and not self.told:
            if not self.started:
                self.start()
            else:
                self.calls.arguments("".join(self.held))
                self.told = True


def _object_in(text: str) -> str:
    try:
        if isinstance(json.loads(text), dict):
            return text
    except (ValueError, RecursionError):
        pass
    if not text.strip():
        return "{}"
    raise Malformed


def _any(cursor: Cursor) -> Step[str]:
    parts: list[str] = []
    yield from literal(cursor, JSON, parts.append)
    return "".join(parts)


def _string(cursor: Cursor) -> Step[str]:
    if not (yield from cursor.sees('"', "'")):
        raise Malformed
    value = json.loads((yield from _any(cursor)))
    assert isinstance(value, str)
    return value
