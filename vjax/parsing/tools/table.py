"""The formats by name."""

from __future__ import annotations

from vjax.parsing.tools.core import Format
from vjax.parsing.tools.json_calls import JsonCalls

TURNS = ("<|im_end|>",)

HERMES = Format(JsonCalls((("<tool_call>",),), ("</tool_call>",)), ("<tool_call>",), drop=TURNS)

FORMATS: dict[str, Format] = {
    "hermes": HERMES,
}
JSON_ARRAY = Format(JsonCalls(), bare=("[", "{"))
