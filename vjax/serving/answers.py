"""One answer of a chat on its way to the client: its text taken apart, as a message or as deltas."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vjax.outputs import CompletionOutput
from vjax.parsing.pieces import Content, Piece, Reasoning, ToolArguments, ToolStart, joined
from vjax.serving.formats import AnswerPlan

Delta = dict[str, Any]


class Answer:
    """Takes the outputs of one continuation, in order."""

    def __init__(self, plan: AnswerPlan) -> None:
        self.plan = plan
        self._parser = plan.parser()
        self._thinking = plan.opening == "open" and plan.marks is not None
        self._leftovers: set[int] = set()  # special tokens that came, and are no text if the parser leaves them
        self._pattern: re.Pattern[str] | None = None
        self.reasoning_tokens = 0
        self.called = False

    @property
    def parsed(self) -> bool:
        return self._parser is not None

    def deltas(self, one: CompletionOutput) -> list[Delta]:
        """What an output of new text adds; each delta bears parts of one call at most."""
        deltas: list[Delta] = []
        for piece in self._pieces(one):
            if isinstance(piece, ToolStart | ToolArguments):
                _add_call(deltas, piece)
                continue
            name = "reasoning" if isinstance(piece, Reasoning) else "content"
            if not deltas or name in deltas[-1] or "tool_calls" in deltas[-1] or "content" in deltas[-1]:
                deltas.append({})
            deltas[-1][name] = piece.text
        return deltas

    def message(self, one: CompletionOutput, role: str, before: str = "") -> dict[str, Any]:
        """A whole output as a message; `before` is put before its text."""
        texts: dict[type, list[str]] = {Reasoning: [], Content: []}
        calls: list[dict[str, Any]] = []
        for piece in self._pieces(one):
            if isinstance(piece, ToolStart):
                calls.append({"id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": ""}})
            elif isinstance(piece, ToolArguments):
                calls[-1]["function"]["arguments"] += piece.text
            else:
                texts[type(piece)].append(piece.text)
        content = before + "".join(texts[Content])
        message: dict[str, Any] = {
            "role": role,
            "content": content if content or not self.parsed else None,
            "refusal": None,
            "tool_calls": calls,
        }
        if self.plan.formats.marks is not None:
            message["reasoning"] = "".join(texts[Reasoning]) or None
        return message

    def ended(self, one: CompletionOutput) -> CompletionOutput:
        """The output with the reason for its end as a chat tells it. A forced call of a named tool is no choice of the
        model's: it just stops."""
        if not self.called or self.plan.choice == "named" or one.finish_reason != "stop":
            return one
        return replace(one, finish_reason="tool_calls")

    def _pieces(self, one: CompletionOutput) -> list[Piece]:
        """Neighbours of a kind in one, without what the client does not want."""
        self._count(one.token_ids)
        if self._parser is None:
            return [Content(one.text)] if one.text else []
        pieces = self._parser.feed(one.text)
        if one.finish_reason is not None:
            pieces += self._parser.finish()
        if not self.plan.body.include_reasoning:
            pieces = [piece for piece in pieces if not isinstance(piece, Reasoning)]
        return joined(self._clean(pieces))

    def _clean(self, pieces: Iterable[Piece]) -> Iterable[Piece]:
        for piece in pieces:
            if isinstance(piece, ToolStart):
                self.called = True
                yield ToolStart(piece.index, piece.name, piece.id or f"chatcmpl-tool-{uuid.uuid4().hex}")
            elif isinstance(piece, ToolArguments) or self._pattern is None:
                yield piece
            elif text := self._pattern.sub("", piece.text):
                yield type(piece)(text)

    def _count(self, ids: list[int]) -> None:
        """Count tokens of thoughts, and see which special tokens came that the client did not ask for."""
        formats = self.plan.formats
        if formats.marks is not None:
            for id in ids:
                if id in formats.end_ids or id in formats.start_ids:
                    self._thinking = id not in formats.end_ids
                elif self._thinking:
                    self.reasoning_tokens += 1
        new = formats.shown.keys() & set(ids) - self._leftovers
        if new and self.plan.body.skip_special_tokens is not False:
            self._leftovers |= new
            texts = sorted((formats.shown[id] for id in self._leftovers), key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, texts)))


def _add_call(deltas: list[Delta], piece: ToolStart | ToolArguments) -> None:
    last = deltas[-1].get("tool_calls") if deltas else None
    if isinstance(piece, ToolStart):
        function = {"name": piece.name, "arguments": ""}
        deltas.append(
            {"tool_calls": [{"index": piece.index, "id": piece.id, "type": "function", "function": function}]}
        )
    elif last and last[0]["index"] == piece.index:
        last[0]["function"]["arguments"] += piece.text
    else:
        deltas.append({"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]})
