"""Calls as Python writes them: `[f(a=1), g(b="x")]`, or one a line."""

from __future__ import annotations

import json
from dataclasses import dataclass

from vjax.parsing.tools.core import Calls
from vjax.parsing.tools.cursor import Step
from vjax.parsing.tools.literal import PYTHON, literal


@dataclass(frozen=True)
class Pythonic:
    """`opens` and `closes` stand around the list or the lines, each optional."""

    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()

    def __call__(self, calls: Calls) -> Step[None]:
        cursor = calls.cursor
        marked = bool((yield from cursor.skip(*self.opens)))
        yield from cursor.space()
        bracket = yield from cursor.skip("[")
        while True:
            yield from cursor.space()
            yield from self._call(calls, marked)
            cursor.settle()
            yield from cursor.space()
            if bracket:
                if (yield from cursor.expect(",", "]")) == "]":
                    break
                continue
            yield from cursor.skip(",", ";")
            yield from cursor.space()
            if cursor.ended or (yield from cursor.sees(*self.closes)):
                break
        cursor.settle()
        yield from cursor.closings(*self.closes)

    def _call(self, calls: Calls, marked: bool) -> Step[None]:
        """Where the list may be text as well, a call begins with its first argument, not with its name."""
        cursor = calls.cursor
        name = yield from cursor.word()
        yield from cursor.expect("(")
        if marked:
            calls.start(name)
        first = True
        while True:
            yield from cursor.space()
            if (yield from cursor.skip(")")):
                break
            key = yield from cursor.word()
            yield from cursor.space()
            yield from cursor.expect("=")
            if first and not marked:
                calls.start(name)
            calls.arguments(("{" if first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            first = False
            yield from cursor.space()
            yield from literal(cursor, PYTHON, calls.arguments)
            yield from cursor.space()
            if (yield from cursor.expect(",", ")")) == ")":
                break
        if first and not marked:
            calls.start(name)
        calls.arguments("{}" if first else "}")
