"""Formats that several models share but for their markers."""

# ruff: noqa: RUF001  (DeepSeek's markers have wide bars)

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable

from vjax.parsing.tools.core import Calls, Format
from vjax.parsing.tools.cursor import Malformed, Step
from vjax.parsing.tools.json_calls import JsonCalls
from vjax.parsing.tools.literal import Dialect
from vjax.parsing.tools.named import Named
from vjax.parsing.tools.tags import Tags

Reader = Callable[[Calls], Step[None]]

CHATML = ("<|im_end|>",)
LLAMA = ("<|eot_id|>", "<|eom_id|>")
MINIMAX = ("[e~[",)
DEEPSEEK = ("<｜end▁of▁sentence｜>",)
KIMI_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?\Z")


def by_start(*readers: tuple[tuple[str, ...], Reader]) -> Reader:
    """The reader whose markers the block begins with."""

    def read(calls: Calls) -> Step[None]:
        every = [marker for markers, _ in readers for marker in markers]
        found = yield from calls.cursor.sees(*every)
        for markers, reader in readers:
            if found in markers:
                return (yield from reader(calls))
        raise Malformed

    return read


def json_in(start: str | tuple[str, ...], *closes: str, drop: tuple[str, ...] = (), special: bool = False) -> Format:
    """JSON behind a marker and before another."""
    starts = (start,) if isinstance(start, str) else start
    return Format(JsonCalls((starts,), closes), starts, drop=drop, special=special)


def mistral_id() -> str:
    return "".join(random.choices(string.ascii_letters + string.digits, k=9))


def mistral_name(header: str) -> tuple[str, str | None]:
    name, _, id = header.partition("[CALL_ID]")
    return name.strip(), id.strip() or None


def kimi_name(header: str) -> tuple[str, str | None]:
    id = header.strip()
    found = KIMI_ID.match(id)
    return (found.group(1) if found else ""), id


def solar_name(header: str) -> tuple[str, str | None]:
    id, _, name = header.partition("<|tool_call:name|>")
    return name.strip(), id.strip() or None


def coder(*outer: str, closes: tuple[str, ...] = ()) -> Format:
    """Qwen3-Coder's tags, in one of these."""
    tags = Tags(
        call=("<function=",),
        named=(">",),
        key=("<parameter=",),
        keyed=(">",),
        value_end=("</parameter>",),
        call_end=("</function>",),
        opens=outer,
        closes=closes,
        stops=("<parameter=", "</function>"),
        newlines=True,
    )
    return Format(tags, (*outer, "<function="), drop=(*CHATML, "<seed:eos>"))


def pairs(start: str = "<tool_call>", prefix: str = "", sep: str = "", outer: str = "", suffix: str = "") -> Tags:
    """GLM's tags: the name, then keys and values in turn."""
    key = f"<{prefix}arg_key{suffix}>"
    call_end = start.replace("<", "</")
    return Tags(
        call=(start,),
        named=(sep,) if sep else (key, call_end),
        key=(key,),
        keyed=(f"<{prefix}arg_value{suffix}>",),
        value_end=(f"</{prefix}arg_value{suffix}>",),
        call_end=(call_end,),
        opens=(outer,) if outer else (),
        closes=(outer.replace("<", "</"),) if outer else (),
    )


def hunyuan_v3(calls: Calls) -> Step[None]:
    """Every tag may carry the checkpoint's suffix, such as `<tool_call:opensource>`."""
    cursor = calls.cursor
    start = yield from cursor.expect("<tool_calls", "<tool_call")
    suffix, _ = yield from cursor.header(">")
    if suffix and not re.match(r":[\w.-]{1,64}\Z", suffix):
        raise Malformed
    tags = pairs(f"<tool_call{suffix}>", sep=f"<tool_sep{suffix}>", outer=f"<tool_calls{suffix}>", suffix=suffix)
    yield from tags(calls, opened=start == "<tool_call")


def invokes(outer: str, invoke: str = "invoke", parameter: str = "parameter", drop: tuple[str, ...] = ()) -> Format:
    """`<invoke name="f"><parameter name="k">v</parameter></invoke>`, with these tags in this one."""
    opens, closes = (f"<{outer}>", f"</{outer}>") if outer else ("", "")
    tags = Tags(
        call=(f"<{invoke} ",),
        named=(">",),
        key=(f"<{parameter} ",),
        keyed=(">",),
        value_end=(f"</{parameter}>",),
        call_end=(f"</{invoke}>",),
        opens=(opens,) if outer else (),
        closes=(closes,) if outer else (),
        attribute="name",
        cdata=not outer,
    )
    return Format(tags, (opens,) if outer else (f"<{invoke} ",), drop=drop)


def braces(start: str, end: str, quote: str, drop: tuple[str, ...]) -> Format:
    """Gemma's `call:name{key:value}`."""
    dialect = Dialect((quote, '"'), escapes=False, bare_keys=True)
    named = Named((f"{start}call:",), closes=(end,), dialect=dialect)
    return Format(named, (start,), drop=drop, special=True)


def deepseek(named: Named) -> Format:
    return Format(named, (*named.opens[:1], "<｜tool▁call▁begin｜>"), drop=DEEPSEEK, special=True)
