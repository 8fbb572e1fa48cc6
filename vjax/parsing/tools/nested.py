"""Calls as elements within elements, lists as `<item>`: MiniMax M3's."""

from __future__ import annotations

import json
from dataclasses import dataclass

from vjax.parsing.tools.core import Calls
from vjax.parsing.tools.cursor import Cursor, Malformed, Step
from vjax.parsing.tools.literal import quoted
from vjax.parsing.tools.tags import ATTRIBUTE
from vjax.parsing.tools.typed import STRING, Schema, typed

DEEPEST = 20


@dataclass(frozen=True)
class Nested:
    """`mark` stands before every tag."""

    mark: str

    def __call__(self, calls: Calls) -> Step[None]:
        cursor = calls.cursor
        yield from cursor.expect(f"{self.mark}<tool_call>")
        first = True
        while True:
            yield from cursor.space()
            found = yield from cursor.skip(f"{self.mark}</tool_call>", f"{self.mark}<invoke")
            if found.endswith("</tool_call>") and not first:
                cursor.settle()
                return
            if not found.endswith("<invoke"):
                if first:
                    raise Malformed
                return
            header, _ = yield from cursor.header(">")
            attributes = {match[0]: match[1] or match[2] or match[3] for match in ATTRIBUTE.findall(header)}
            yield from self._call(calls, attributes.get("name", ""))
            first = False

    def _call(self, calls: Calls, name: str) -> Step[None]:
        cursor = calls.cursor
        calls.start(name)
        schema = calls.schema(name)
        first = True
        while True:
            yield from cursor.space()
            tag = yield from self._tag(cursor)
            if tag == "/invoke":
                break
            place = schema.child(tag) if schema else None
            calls.arguments(("{" if first else ", ") + json.dumps(tag, ensure_ascii=False) + ": ")
            first = False
            if place and place.kinds == STRING:
                calls.arguments('"')
                yield from cursor.until((self.mark,), lambda text: calls.arguments(quoted(text)))
                calls.arguments('"')
                if (yield from self._tag(cursor)) != f"/{tag}":
                    raise Malformed
            else:
                calls.arguments((yield from self._element(cursor, tag, place, 0)))
        calls.arguments("{}" if first else "}")

    def _tag(self, cursor: Cursor) -> Step[str]:
        yield from cursor.expect(f"{self.mark}<")
        return (yield from cursor.header(">"))[0]

    def _element(self, cursor: Cursor, name: str, place: Schema | None, depth: int) -> Step[str]:
        """The JSON of what stands between `<name>` and `</name>`."""
        if depth > DEEPEST:
            raise Malformed
        parts: list[str] = []
        names: list[str] = []
        values: list[str] = []
        kinds = place.kinds if place else STRING
        while True:
            yield from cursor.until((self.mark,), parts.append)
            tag = yield from self._tag(cursor)
            if tag == f"/{name}":
                break
            array = tag == "item" and (place is None or "array" in kinds)
            inner = (place.items() if array else place.child(tag)) if place else None
            names.append("" if array else tag)
            values.append((yield from self._element(cursor, tag, inner, depth + 1)))
        text = "".join(parts)
        if not names:
            if place and not text.strip() and "string" not in kinds:
                return "[]" if "array" in kinds else "{}" if "object" in kinds else typed(text, kinds)
            return typed(text, kinds)
        if not any(names):
            return "[" + ", ".join(values) + "]"
        pairs = (f"{json.dumps(n, ensure_ascii=False)}: {v}" for n, v in zip(names, values, strict=True))
        return "{" + ", ".join(pairs) + "}"
