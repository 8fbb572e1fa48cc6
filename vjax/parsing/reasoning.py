"""Thoughts in a model's text: one parser, for the marks of `reasoning_table`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from vjax.parsing.pieces import Content, Piece, Reasoning
from vjax.parsing.reasoning_table import MARKS, OWN, Marks

NAMES = tuple(MARKS)
Opening = Literal["open", "maybe", "closed"]
UNDECIDED = (None, "adaptive", "auto")
OFF = ("", "none", "off", "false", "disabled", "no_think", "nothink")

__all__ = ["NAMES", "OWN", "Marks", "Opening", "ReasoningParser", "continued", "detect", "marks_of", "opening"]


def marks_of(name: str, chat_template: str = "", tokens: Iterable[str] = ()) -> Marks:
    """How that family marks its thoughts. Some marks are known from the template, or from the tokens that a vocabulary
    has for them. Raises `ValueError`."""
    marks = MARKS.get(name)
    if marks is None:
        raise ValueError(f"reasoning_parser must be one of {', '.join(NAMES)}, got {name!r}.")
    if marks.suffixed and (found := re.search(r"<think(:[\w.-]{1,40})>", " ".join([chat_template, *tokens]))):
        return marks.with_suffix(found[1])
    if name == OWN and "<response>" in chat_template and "</think>" in chat_template:
        return replace(marks, wraps=("<response>", "</response>"))
    return marks


def opening(marks: Marks, variables: Mapping[str, Any], prompt: str) -> Opening:
    """Whether the answer begins inside thoughts. The prompt knows best; else the template's variables, else what the
    family does."""
    tail = prompt[-256:].rstrip()
    if tail.endswith(tuple(mark.rstrip() for mark in marks.starts)):
        return "open"
    if marks.format:  # whatever the prompt ends with, messages follow
        return "maybe"
    if tail.endswith(tuple(mark.rstrip() for mark in marks.ends)):
        return "closed"
    given = [_is_on(value) for name in marks.switches if (value := variables.get(name)) not in UNDECIDED]
    if not given:
        return "open" if marks.on else "maybe"
    on = all(given) if marks.on or "reasoning_effort" in marks.switches else any(given)
    return "closed" if not on else "open" if marks.opens_when_on else "maybe"


def continued(marks: Marks, text: str) -> Opening:
    """The same for an answer that goes on behind this text of its own."""
    start = max((text.rfind(mark) for mark in marks.starts), default=-1)
    return "open" if start > max((text.rfind(mark) for mark in marks.ends), default=-1) else "closed"


def _is_on(value: Any) -> bool:
    return value.lower() not in OFF if isinstance(value, str) else bool(value)


def detect(chat_template: str) -> str | None:
    """The name for a chat template, None where it says nothing of thoughts."""
    if "<|channel|>" in chat_template and "analysis" in chat_template:
        return "openai_gptoss"
    for sign, name in (
        ("<seed:think>", "seed_oss"), ("<mm:think>", "minimax_m3"), ("<ifm|think", "k2_horizon"),
        ("<|content_thinking|>", "inkling"), ("<|plamo:begin_think", "plamo3"), ("[THINK]", "mistral"),
        ("<|START_THINKING|>", "cohere_command3"), ("<|channel>", "gemma4"), ("to=self<|message|>", "muse"),
        ("thought process:", "granite"), ("<think{}>", "hy_v3"),
        ("<think:", "hy_v4"),
    ):  # fmt: skip
        if sign in chat_template:
            return name
    if "</think>" not in chat_template and "<think>" not in chat_template:
        return None
    return "hunyuan_a13b" if "<answer>" in chat_template else OWN


class ReasoningParser:
    """A `vjax.parsing.pieces.Parser` of one answer. Newlines next to marks belong to the marks."""

    def __init__(self, marks: Marks, opened: bool) -> None:
        """`opened`: the answer begins inside thoughts."""
        self._marks = marks
        self._state = self._thoughts_first if opened else self._begin
        self._text = ""  # not read yet: between two deltas less than a mark
        self._space: list[str] = []  # white space that is told only if text follows
        self._pieces: list[Piece] = [Content(marks.prefix)] if marks.prefix else []
        self._inside = opened
        self._wrapped = self._ended = False

    def feed(self, text: str) -> list[Piece]:
        self._text += text
        while self._state():
            pass
        return self._told()

    def finish(self) -> list[Piece]:
        self._ended = True
        self.feed("")
        self._tell("".join(self._space))
        self._space.clear()
        return self._told()

    # States read some of the text; they return whether there is more to do.

    def _begin(self) -> bool:
        marks = self._marks
        self._skip(None)
        found = self._sees(marks.starts + marks.wraps[:1])
        if found is None:
            return False
        if found in marks.starts:
            self._enter(found)
        elif found:
            self._unwrap(found)
        else:
            self._leave()
        return True

    def _thoughts_first(self) -> bool:
        """The mark may have been written already, or come now."""
        self._skip(None)
        found = self._sees(self._marks.starts)
        if found is None:
            return False
        if found:
            self._enter(found)
        else:
            self._space = ["".join(self._space).lstrip("\n")]
            self._state = self._thoughts
        return True

    def _thoughts_fresh(self) -> bool:
        self._text = self._text.lstrip("\n")
        if self._text:
            self._state = self._thoughts
        return bool(self._text)

    def _thoughts(self) -> bool:
        marks = self._marks
        at, found = _find(self._text, marks.ends + marks.until, self._ended)
        self._say(at)
        if not found:
            return False
        if found in marks.ends:
            self._text = self._text[len(found) :]
        self._space.clear()
        self._inside, self._state = False, self._answer_fresh
        return True

    def _answer_fresh(self) -> bool:
        if not any(self._space):
            self._text = self._text.lstrip("\n")
        if self._marks.wraps:
            self._skip(None)
        if not self._text and not (self._ended and any(self._space)):
            return False
        found = self._sees(self._marks.wraps[:1])
        if found is None:
            return False
        if found:
            self._unwrap(found)
        else:
            self._leave()
        return True

    def _answer(self) -> bool:
        marks = self._marks
        stops = marks.drop + (marks.starts if marks.anywhere else ()) + (marks.wraps[1:] if self._wrapped else ())
        at, found = _find(self._text, stops, self._ended) if stops else (len(self._text), "")
        if self._wrapped:
            self._say(at)
        else:
            self._tell(self._text[:at])
            self._text = self._text[at:]
        if found in marks.starts:
            self._enter(found)
        elif found:
            self._text = self._text[len(found) :]
            if found in marks.wraps:
                self._space.clear()
                self._wrapped = False
        return bool(found)

    def _enter(self, mark: str) -> None:
        self._text = self._text[len(mark) :]
        self._space.clear()
        self._inside, self._state = True, self._thoughts_fresh

    def _unwrap(self, mark: str) -> None:
        self._text = self._text[len(mark) :]
        self._space.clear()
        self._wrapped, self._state = True, self._wrapped_fresh

    def _wrapped_fresh(self) -> bool:
        self._text = self._text.lstrip("\n")
        if self._text:
            self._state = self._answer
        return bool(self._text)

    def _leave(self) -> None:
        self._tell("".join(self._space))
        self._space.clear()
        self._inside, self._state = False, self._answer

    def _skip(self, chars: str | None) -> None:
        rest = self._text.lstrip(chars)
        self._space.append(self._text[: len(self._text) - len(rest)])
        self._text = rest

    def _sees(self, marks: tuple[str, ...]) -> str | None:
        """Which mark stands here, empty for none, or None if that is not known yet."""
        text = self._text
        if not marks:
            return ""
        if not self._ended and any(len(mark) > len(text) and mark.startswith(text) for mark in marks):
            return None
        return max((mark for mark in marks if text.startswith(mark)), key=len, default="")

    def _say(self, count: int) -> None:
        """Tell so much of the text. Newlines at its end wait for what comes."""
        text, self._text = self._text[:count], self._text[count:]
        body = text.rstrip("\n")
        if body:
            self._tell("".join(self._space) + body)
            self._space = []
        self._space.append(text[len(body) :])

    def _tell(self, text: str) -> None:
        if text:
            self._pieces.append(Reasoning(text) if self._inside else Content(text))

    def _told(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def _find(text: str, marks: tuple[str, ...], ended: bool) -> tuple[int, str]:
    """Where the first mark begins, and the mark; or where one may yet begin, and nothing."""
    pattern, beginnings, longest = _search(marks)
    found = pattern.search(text)
    if found and (ended or text[found.start() :] not in beginnings):
        return found.start(), found.group()
    if found:
        return found.start(), ""
    if not ended:
        for start in range(max(0, len(text) - longest + 1), len(text)):
            if text[start:] in beginnings:
                return start, ""
    return len(text), ""


@lru_cache(maxsize=256)
def _search(marks: tuple[str, ...]) -> tuple[re.Pattern[str], frozenset[str], int]:
    ordered = sorted(marks, key=len, reverse=True)
    beginnings = frozenset(mark[:end] for mark in marks for end in range(1, len(mark)))
    return re.compile("|".join(map(re.escape, ordered))), beginnings, len(ordered[0])
