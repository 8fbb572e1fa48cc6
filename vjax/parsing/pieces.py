"""What a parser of model output says, piece by piece, and what it has to offer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thoughts."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A call begins; `index` counts the answer's calls. `id` is None where the format writes none."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """More of call `index`'s arguments: joined, they are a JSON object."""

    index: int
    text: str


Piece: TypeAlias = Reasoning | Content | ToolStart | ToolArguments


class Parser(Protocol):
    """Takes a model's text in deltas of any size. However the text is cut, the joined pieces are the same, and a piece
    is never taken back: text that may turn out to be a marker is held until that is known."""

    def feed(self, text: str) -> list[Piece]: ...

    def finish(self) -> list[Piece]:
        """What was held when the text ended. Text that began as a call and is none comes as content."""
        ...


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces with neighbours of one kind in one, in time linear in their text."""
    found: list[Piece] = []
    for _, run in groupby(pieces, _kind):
        first, *more = run
        if more and not isinstance(first, ToolStart):
            text = "".join([first.text, *(one.text for one in more if not isinstance(one, ToolStart))])
            first = ToolArguments(first.index, text) if isinstance(first, ToolArguments) else type(first)(text)
        found.append(first)
    return found


def _kind(piece: Piece) -> tuple[type[Piece], int]:
    """Equal for pieces that can be one: text of a kind, arguments of one call, no two starts."""
    return type(piece), piece.index if isinstance(piece, ToolStart | ToolArguments) else 0
