"""One answer taken apart: reasoning first, then the calls of tools in what is left."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vjax.parsing.pieces import Content, Parser, Piece, ToolArguments, ToolStart
from vjax.parsing.reasoning import Marks, ReasoningParser
from vjax.parsing.tools import tool_parser


class OutputParser:
    """A `Parser` made of two, either of which may be missing."""

    def __init__(self, reasoning: Parser | None, tools: Parser | None, only_first_call: bool = False) -> None:
        self._reasoning, self._tools, self._only_first = reasoning, tools, only_first_call

    def feed(self, text: str) -> list[Piece]:
        if self._reasoning is None:
            return self._kept(self._in_answer(text))
        return self._kept(self._behind(self._reasoning.feed(text)))

    def finish(self) -> list[Piece]:
        pieces = [] if self._reasoning is None else self._behind(self._reasoning.finish())
        return self._kept(pieces + (self._tools.finish() if self._tools is not None else []))

    def _behind(self, pieces: Iterable[Piece]) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            found += self._in_answer(piece.text) if isinstance(piece, Content) else [piece]
        return found

    def _in_answer(self, text: str) -> list[Piece]:
        if self._tools is not None:
            return self._tools.feed(text)
        return [Content(text)] if text else []

    def _kept(self, pieces: list[Piece]) -> list[Piece]:
        if not self._only_first:
            return pieces
        return [piece for piece in pieces if not (isinstance(piece, ToolStart | ToolArguments) and piece.index)]


def answer_parser(
    marks: Marks | None, opened: bool, format: str | None, tools: list[dict[str, Any]], *, only_first_call: bool = False
) -> OutputParser:
    """For an answer with these marks of thoughts and this format of calls, one of which may be None."""
    if marks is None:
        reasoning: Parser | None = None
    elif marks.format:
        reasoning, format = tool_parser(marks.format, tools), None if format == marks.format else format
    else:
        reasoning = ReasoningParser(marks, opened)
    return OutputParser(reasoning, None if format is None else tool_parser(format, tools), only_first_call)


class NamedCall:
    """A `Parser` of text that is the arguments of one call, as a grammar makes a model write them."""

    def __init__(self, name: str) -> None:
        self._start: list[Piece] = [ToolStart(0, name)]

    def feed(self, text: str) -> list[Piece]:
        if not text:
            return []
        start, self._start = self._start, []
        return [*start, ToolArguments(0, text)]

    def finish(self) -> list[Piece]:
        return []
