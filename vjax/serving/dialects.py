"""Other APIs over the chat path: their requests become chat requests, and chat answers become theirs.

They read what a chat answer shows, so whatever the chat path parses (reasoning, tool calls) reaches them too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from vjax.errors import RequestError
from vjax.serving.protocol import ChatRequest

Piece = tuple[Literal["reasoning", "text", "tool", "end"], Any]


def make_chat(**fields: Any) -> ChatRequest:
    """A chat request of the fields that are not None. Raises `RequestError` for what does not fit."""
    try:
        return ChatRequest.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"{where}: {first['msg']}", where or None) from None


def pieces(chunk: Mapping[str, Any]) -> Iterator[Piece]:
    """What a chunk of a streamed chat with one choice brings, in order: texts, parts of tool calls (`{index, id?,
    name?, arguments}`), and at the end the choice itself."""
    for choice in chunk["choices"]:
        delta = choice["delta"]
        if delta.get("reasoning"):
            yield "reasoning", delta["reasoning"]
        if delta.get("content"):
            yield "text", choice
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            yield (
                "tool",
                {
                    "index": call.get("index", 0),
                    "id": call.get("id"),
                    "name": function.get("name"),
                    "arguments": function.get("arguments") or "",
                },
            )
        if choice.get("finish_reason"):
            yield "end", choice


@dataclass
class Told:
    """What a streamed chat of one choice has told so far of its end: the choice, and the tokens used."""

    end: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None

    async def pieces(self, chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[Piece, None]:
        """The pieces of all chunks but the end, which is kept."""
        async with aclosing(chunks):
            async for chunk in chunks:
                self.usage = chunk.get("usage") or self.usage
                for kind, piece in pieces(chunk):
                    if kind == "end":
                        self.end = piece
                    else:
                        yield kind, piece


def text_of(content: Any, where: str, kinds: Mapping[str, str]) -> str:
    """The joined text of a string or of parts, whose type and place of text are `kinds`."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    texts: list[str] = []
    for part in objects(content, where):
        kind = part.get("type", "text")
        text = part.get(kinds.get(kind, "")) if isinstance(kind, str) else None
        if not isinstance(text, str):
            raise RequestError(f"{where} holds a part of type {kind!r}; only text is supported.", where)
        texts.append(text)
    return "\n".join(texts)


def objects(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RequestError(f"{where} must be a list of objects.", where)
    return value


def text_field(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{where}.{name} must be a non-empty string.", f"{where}.{name}")
    return value
