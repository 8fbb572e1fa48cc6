"""A place in text that is still coming. Readers of formats are generators: they yield when they need more text."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Step: TypeAlias = Generator[None, None, T]  # yields to wait for text, returns what it read

SPACE = re.compile(r"\s*")
WORD = re.compile(r"[\w.\-]*")
LONGEST_NAME = 1000  # characters: names, keys and headers


class Malformed(Exception):  # noqa: N818  (no error for anybody outside: the text is content)
    """The text is not what the format says, or it ended too early."""


class Markers:
    """Strings to look for in text that may end in the middle of one."""

    def __init__(self, markers: tuple[str, ...]) -> None:
        ordered = sorted(markers, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, ordered)))
        self.prefixes = frozenset(marker[:i] for marker in markers for i in range(1, len(marker)))
        self.longest = len(ordered[0])

    def find(self, text: str, pos: int, ended: bool) -> tuple[int, str]:
        """Where the first marker begins, and the marker; or where one may yet begin, and nothing."""
        found = self.pattern.search(text, pos)
        if found and (ended or found.end() < len(text) or found.group() not in self.prefixes):
            return found.start(), found.group()
        if found:  # a longer one may be coming
            return found.start(), ""
        if not ended:
            for start in range(max(pos, len(text) - self.longest + 1), len(text)):
                if text[start:] in self.prefixes:
                    return start, ""
        return len(text), ""


markers = lru_cache(maxsize=512)(Markers)


class Cursor:
    """`text[pos:]` is what nobody has read. What was read and is not settled yet is kept, in case it is no call.

    Readers consume as they go, so that little stays unread between two deltas and time stays linear however they come.
    """

    def __init__(self) -> None:
        self.text, self.pos, self.ended = "", 0, False
        self._held: list[str] = []
        self._held_from = 0

    def add(self, text: str) -> None:
        if self._held_from < self.pos:
            self._held.append(self.text[self._held_from : self.pos])
        self.text, self.pos, self._held_from = self.text[self.pos :] + text, 0, 0

    def settle(self) -> None:
        """What was read so far has been told, or was a marker."""
        self._held.clear()
        self._held_from = self.pos

    def keep(self, text: str) -> None:
        """`text`, the end of what was read, is not settled after all, if the rest is."""
        if text and not self._held and self._held_from == self.pos:
            self._held.append(text)

    def held(self) -> str:
        """What was read and not told; it is settled now."""
        text = "".join(self._held) + self.text[self._held_from : self.pos]
        self.settle()
        return text

    def take(self, count: int) -> str:
        self.pos += count
        return self.text[self.pos - count : self.pos]

    def more(self) -> Step[None]:
        """Waits for text, or for its end. Raises `Malformed` when that is known already."""
        if self.ended:
            raise Malformed
        yield

    def space(self) -> Step[str]:
        """White space that stands here."""
        parts = []
        while True:
            found = SPACE.match(self.text, self.pos)
            assert found is not None
            parts.append(self.take(found.end() - self.pos))
            if self.pos < len(self.text) or self.ended:
                return "".join(parts)
            yield

    def sees(self, *options: str) -> Step[str]:
        """Which of these the text goes on with, or nothing. Reads none of it."""
        while True:
            rest = len(self.text) - self.pos
            waits = not self.ended and any(
                len(option) > rest and option.startswith(self.text[self.pos :]) for option in options
            )
            if not waits:
                fitting = [option for option in options if self.text.startswith(option, self.pos)]
                return max(fitting, key=len, default="")
            yield

    def skip(self, *options: str) -> Step[str]:
        """`sees`, and reads it."""
        found = yield from self.sees(*options)
        self.pos += len(found)
        return found

    def around(self, *options: str) -> Step[None]:
        """Reads white space, and any of these as often as they come."""
        yield from self.space()
        while options and (yield from self.skip(*options)):
            yield from self.space()

    def word(self) -> Step[str]:
        """Reads a name. Raises `Malformed` where none stands."""
        parts: list[str] = []
        room = LONGEST_NAME
        while True:
            found = WORD.match(self.text, self.pos)
            assert found is not None
            parts.append(self.take(min(found.end() - self.pos, room)))
            room -= len(parts[-1])
            if self.pos < len(self.text) or self.ended or not room:
                break
            yield
        word = "".join(parts)
        if not word or not room:
            raise Malformed
        return word

    def expect(self, *options: str) -> Step[str]:
        """`skip`, or raises `Malformed`."""
        found = yield from self.skip(*options)
        if not found:
            raise Malformed
        return found

    def closing(self, *options: str) -> Step[str]:
        """Behind a call: reads and settles white space and one of these if it stands here, also one that the end of
        the text cut short."""
        yield from self.space()
        found = yield from self.skip(*options)
        cut = self.ended and any(option.startswith(self.text[self.pos :]) for option in options)
        if not found and cut:
            self.pos = len(self.text)
        if found or cut:
            self.settle()
        return found

    def closings(self, *options: str) -> Step[None]:
        """`closing`, as often as they come."""
        while options and (yield from self.closing(*options)):
            pass

    def until(self, stops: tuple[str, ...], sink: Callable[[str], None]) -> Step[str]:
        """Reads up to the first of `stops`, which it returns unread. Raises `Malformed` when none comes."""
        search = markers(stops)
        while True:
            start, found = search.find(self.text, self.pos, self.ended)
            if start > self.pos:
                sink(self.take(start - self.pos))
            if found:
                return found
            yield from self.more()

    def header(self, *stops: str) -> Step[tuple[str, str]]:
        """A short text up to the first of `stops`, and that one, read too. Raises `Malformed` where it is long."""
        parts: list[str] = []
        room = LONGEST_NAME
        search = markers(stops)
        while True:
            start, found = search.find(self.text, self.pos, self.ended)
            part = self.take(min(start - self.pos, room))
            parts.append(part)
            room -= len(part)
            if not room:
                raise Malformed
            if found:
                self.pos += len(found)
                return "".join(parts), found
            yield from self.more()
