"""Calls of tools in a model's text: one parser, and a table of how models write calls."""

from __future__ import annotations

from typing import Any

from vjax.parsing.pieces import Parser
from vjax.parsing.tools.core import ToolParser
from vjax.parsing.tools.detect import detect
from vjax.parsing.tools.table import FORMATS, JSON_ARRAY

NAMES = tuple(FORMATS)

__all__ = ["NAMES", "detect", "needs_special_tokens", "tool_parser"]


def tool_parser(name: str, tools: list[dict[str, Any]]) -> Parser:
    """A parser of one answer. `name` is one of `NAMES`, or `json_array`: `[{"name", "parameters"}]` and nothing else,
    as a grammar makes a model write that has to call. `tools` are OpenAI's, and may be empty. Raises `ValueError`."""
    format = JSON_ARRAY if name == "json_array" else FORMATS.get(name)
    if format is None:
        raise ValueError(f"tool_call_parser must be one of {', '.join(NAMES)}, got {name!r}.")
    return ToolParser(format, tools)


def needs_special_tokens(name: str) -> bool:
    """Whether this format's markers may be special tokens, so that text has to be decoded with them."""
    return name in FORMATS and FORMATS[name].special
