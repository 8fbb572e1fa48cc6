"""Calls as tags, an argument in each: `<function=f><parameter=k>v</parameter></function>` and its kin."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from vjax.parsing.tools.core import Calls
from vjax.parsing.tools.cursor import Malformed, Step
from vjax.parsing.tools.literal import quoted
from vjax.parsing.tools.typed import STRING, Schema, strict, typed

ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
TYPE_TAG = re.compile(r"type>([^<]*)<")


@dataclass(frozen=True)
class Tags:
    """`call` begins a call and one of `named` ends its header, `key` begins an argument and `keyed` ends its header,
    `value_end` the value. `stops` also end a value, or the call, whose own end is missing. `opens` may stand before a
    call, `closes` behind it. `attribute` and `key_attribute` hold the names in headers such as `name="f"`; without one,
    the header is the name. With `newlines` a value has a line break on either side that is not its own."""

    call: tuple[str, ...]
    named: tuple[str, ...]
    key: tuple[str, ...]
    keyed: tuple[str, ...]
    value_end: tuple[str, ...]
    call_end: tuple[str, ...]
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    attribute: str = ""
    key_attribute: str = "name"
    newlines: bool = False
    cdata: bool = False

    def __call__(self, calls: Calls, opened: bool = False) -> Step[None]:
        """`opened`: the first call's own marker is read already."""
        cursor = calls.cursor
        first = True
        while True:
            if not opened:
                yield from cursor.around(*self.opens)
            if not opened and not (yield from cursor.skip(*self.call)):
                if first:
                    raise Malformed
                return
            yield from self._call(calls)
            first = opened = False
            yield from cursor.closings(*self.closes)

    def _call(self, calls: Calls) -> Step[None]:
        cursor = calls.cursor
        header, stop = yield from cursor.header(*self.named)
        name, _ = self._read(header, self.attribute)
        if stop in self.key + self.call_end:  # these end the header as well, and are not part of it
            cursor.pos -= len(stop)
        calls.start(name)
        schema = calls.schema(name)
        first = True
        while True:
            yield from cursor.space()
            if (yield from cursor.skip(*self.call_end)):
                break
            if not (yield from cursor.skip(*self.key)):
                if self.stops and (yield from cursor.sees(*self.closes, *self.call)):
                    break
                raise Malformed
            key, kind = self._read((yield from cursor.header(*self.keyed))[0], self.key_attribute)
            calls.arguments(("{" if first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            first = False
            yield from self._value(calls, schema.child(key) if schema else None, kind)
            yield from cursor.skip(*self.value_end)
        calls.arguments("{}" if first else "}")

    def _read(self, header: str, attribute: str) -> tuple[str, str]:
        """The name in a header, and the type that it states."""
        attributes = {found[0]: found[1] or found[2] or found[3] for found in ATTRIBUTE.findall(header)}
        stated = {"true": "string", "false": "json"}.get(attributes.get("string", ""), attributes.get("type", ""))
        if not self.attribute:
            written = TYPE_TAG.search(header)
            name = header.partition("<")[0].strip().strip("\"'")
            return name, written.group(1).strip() if written else ""
        if attribute not in attributes:
            raise Malformed
        return attributes[attribute], stated

    def _value(self, calls: Calls, schema: Schema | None, stated: str) -> Step[None]:
        cursor = calls.cursor
        kinds = schema.kinds if schema else STRING
        ends = self.value_end + self.stops
        if self.newlines:
            yield from cursor.skip("\r\n", "\n")
        inner = self.cdata and (yield from cursor.skip("<![CDATA["))
        if inner:
            ends = ("]]>",)
        if stated == "string" or (not stated and kinds == STRING):
            calls.arguments('"')
            line = [""]
            yield from cursor.until(ends, self._streamed(calls, line))
            calls.arguments('"')
        else:
            parts: list[str] = []
            try:
                yield from cursor.until(ends, parts.append)
            except Malformed:  # the answer was cut short, and so are its arguments
                calls.arguments("".join(parts))
                raise
            text = "".join(parts)
            if self.newlines:
                text = text.removesuffix("\n")
            told = strict(text.strip()) if stated else None
            calls.arguments(told or typed(text, kinds))
        if inner:
            yield from cursor.expect("]]>")

    def _streamed(self, calls: Calls, line: list[str]) -> Callable[[str], None]:
        """Tells a string as it comes; its last line break waits, in `line`, for what follows."""

        def tell(text: str) -> None:
            text = line[0] + text
            line[0] = "\n" if self.newlines and text.endswith("\n") else ""
            calls.arguments(quoted(text[: len(text) - len(line[0])]))

        return tell
