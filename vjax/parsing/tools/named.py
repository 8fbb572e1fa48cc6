"""Calls as a name in the format's own markup, with arguments that are one literal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vjax.parsing.tools.core import Calls
from vjax.parsing.tools.cursor import Malformed, Step
from vjax.parsing.tools.literal import JSON, Dialect, literal


def plain(header: str) -> tuple[str, str | None]:
    return header.strip(), None


@dataclass(frozen=True)
class Named:
    """`opens` may stand before a call and `closes` behind it, `call` begins one, one of `named` ends its header (or
    the literal begins at once). `name` finds name and id in the header; `fences` may surround the arguments."""

    call: tuple[str, ...]
    named: tuple[str, ...] = ()
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    dialect: Dialect = JSON
    fences: tuple[str, ...] = ()
    name: Callable[[str], tuple[str, str | None]] = plain

    def __call__(self, calls: Calls) -> Step[None]:
        cursor = calls.cursor
        first = True
        while True:
            yield from cursor.around(*self.opens)
            if not (yield from cursor.skip(*self.call)):
                if first:
                    raise Malformed
                return
            header, stop = yield from cursor.header("{", *self.named, *self.fences, *self.closes)
            if stop in self.closes:
                raise Malformed
            cursor.pos -= len(stop) if stop not in self.named else 0
            calls.start(*self.name(header))
            yield from cursor.around(*self.fences)
            if not (yield from cursor.sees("{")):
                raise Malformed
            yield from literal(cursor, self.dialect, calls.arguments)
            first = False
            if self.fences:
                yield from cursor.closing(*self.fences)
            yield from cursor.closings(*self.closes)
