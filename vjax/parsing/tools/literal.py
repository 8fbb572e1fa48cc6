"""Literals of JSON, of Python and in braces, read as they come and told as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from vjax.parsing.tools.cursor import LONGEST_NAME, Cursor, Malformed, Step

DEEPEST = 200  # brackets within brackets
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?\Z")
WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
ESCAPES = {"a": "\a", "v": "\v", "0": "\0", "\n": "", "'": "'"}  # Python's, where JSON has none
CLOSERS = {"{": "}", "[": "]", "(": ")"}
CODES = {"x": 2, "u": 4, "U": 8}  # hexadecimal digits after a backslash


def quoted(text: str) -> str:
    """What stands for `text` between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


@dataclass(frozen=True)
class Dialect:
    """How strings begin and end (the longest first), whether a backslash escapes, and whether keys may be bare."""

    quotes: tuple[str, ...]
    escapes: bool = True
    bare_keys: bool = False
    tuples: bool = False
    marks: frozenset[str] = field(init=False)
    token: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        firsts = re.escape("".join({quote[0] for quote in self.quotes}))
        marks = "{}[]()" if self.tuples else "{}[]"
        object.__setattr__(self, "marks", frozenset(marks + ",:"))
        plain = r'|"[^"\\\x00-\x1f]*"' if self.quotes[0] == '"' else ""  # a whole string that is JSON as it stands
        pattern = rf"\s+|[{re.escape(marks)},:]{plain}|[^\s{re.escape(marks)},:{firsts}]+"
        object.__setattr__(self, "token", re.compile(pattern))


JSON = Dialect(('"', "'"))
PYTHON = Dialect(('"""', "'''", '"', "'"), bare_keys=True, tuples=True)

RUNS = {  # what a string may go on with and JSON's string too, by the first character of its end
    (first, escapes): re.compile(
        rf'(?:[^"\\\x00-\x1f{re.escape(first)}]++' + (r'|\\["\\/bfnrt])++' if escapes else ")++")
    )
    for first in "\"'<"
    for escapes in (True, False)
}
CONTROLS = re.compile(r"[\x00-\x1f]+")


class Literal:
    """Takes one value apart, over as many calls of `run` as it takes; `out` holds the JSON of what was read."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.out: list[str] = []
        self.pos = 0
        self.done = False
        self._closers: list[str] = []
        self._expect = "value"  # or first (value or end), first key (or end), colon, after
        self.comma = ""  # told with what comes after it: there may be nothing
        self._quote = ""  # what ends the string that this is in

    def run(self, text: str, pos: int, ended: bool) -> None:
        """Reads on from `pos`; `self.pos` is where it stopped for want of text, or behind the value (`done`)."""
        token, marks = self.dialect.token, self.dialect.marks
        self.pos = pos
        while not self.done:
            if self._quote:
                self.pos = pos = self._string(text, pos, ended)
                if self._quote:
                    return
                continue
            found = token.match(text, pos)
            if found is None:
                if not self._open_string(text, pos, ended):
                    return
                self.pos = pos = pos + len(self._quote)
                continue
            part, end = found.group(), found.end()
            if part in marks:
                self._mark(part)
            elif part.isspace():
                if self.comma:
                    self.comma += part
                else:
                    self.out.append(part)
            elif part[0] == '"' and end - pos > 1:
                self._begin()
                self.out.append(part)
                self._end()
            elif end == len(text) and not ended:
                if end - pos > LONGEST_NAME:
                    raise Malformed
                return
            else:
                self._word(part)
            self.pos = pos = end

    def _begin(self) -> None:
        """A value or key comes."""
        if self._expect in ("colon", "after"):
            raise Malformed
        if self.comma:
            self.out.append(self.comma)
            self.comma = ""

    def _end(self) -> None:
        """A value or key is over."""
        if self._expect == "first key":
            self._expect = "colon"
        else:
            self._expect = "after"
            self.done = not self._closers

    def _mark(self, mark: str) -> None:
        expect, out = self._expect, self.out
        if mark in "{[(":
            if expect not in ("value", "first") or len(self._closers) >= DEEPEST:
                raise Malformed
            self._begin()
            self._closers.append(CLOSERS[mark])
            out.append("{" if mark == "{" else "[")
            self._expect = "first key" if mark == "{" else "first"
        elif mark == ",":
            if expect != "after" or not self._closers:
                raise Malformed
            self.comma = ","
            self._expect = "first key" if self._closers[-1] == "}" else "first"
        elif mark == ":":
            if expect != "colon":
                raise Malformed
            out.append(":")
            self._expect = "value"
        else:
            if expect not in ("after", "first", "first key") or not self._closers or self._closers.pop() != mark:
                raise Malformed
            self.comma = ""
            out.append("}" if mark == "}" else "]")
            self._expect = "after"
            self.done = not self._closers

    def _word(self, word: str) -> None:
        if len(word) > LONGEST_NAME:
            raise Malformed
        if self._expect == "first key":
            if not self.dialect.bare_keys:
                raise Malformed
            told = json.dumps(word, ensure_ascii=False)
        else:
            told = WORDS.get(word) or (word if NUMBER.match(word) else number(word))
        self._begin()
        self.out.append(told)
        self._end()

    def _open_string(self, text: str, pos: int, ended: bool) -> bool:
        """Whether a string begins here; False to wait for more text."""
        rest = text[pos : pos + 8]
        quotes = self.dialect.quotes
        if not ended and any(len(quote) > len(rest) and quote.startswith(rest) for quote in quotes):
            return False
        quote = next((quote for quote in quotes if rest.startswith(quote)), "")
        if not quote:
            raise Malformed
        self._begin()
        self._quote = quote
        self.out.append('"')
        return True

    def _string(self, text: str, pos: int, ended: bool) -> int:
        quote, out, escapes = self._quote, self.out, self.dialect.escapes
        run = RUNS[quote[0], escapes]
        while pos < len(text):
            if found := run.match(text, pos) or CONTROLS.match(text, pos):
                part = found.group()
                out.append(part if part[0] >= " " else quoted(part))
                pos = found.end()
            elif text.startswith(quote, pos):
                out.append('"')
                self._quote = ""
                self._end()
                return pos + len(quote)
            elif text[pos] == "\\" and escapes:
                if (end := self._escape(text, pos, ended)) == pos:
                    return pos
                pos = end
            elif not ended and quote.startswith(text[pos:]):
                return pos
            else:
                out.append(quoted(text[pos]))
                pos += 1
        return pos

    def _escape(self, text: str, pos: int, ended: bool) -> int:
        """Reads an escape that is none of JSON's short ones; returns `pos` to wait for more text."""
        if pos + 1 == len(text):
            return pos
        code = text[pos + 1]
        digits = CODES.get(code, 0)
        if not self.dialect.tuples and code != "u":
            digits = 0
        end = pos + 2 + digits
        if end > len(text) and not ended:
            return pos
        try:
            point = int(text[pos + 2 : end], 16) if digits and text[pos + 2 : end].isalnum() else -1
        except ValueError:
            point = -1
        if digits and 0 <= point <= 0x10FFFF and end <= len(text):
            self.out.append(text[pos:end] if code == "u" else quoted(chr(point)))
            return end
        if code in ESCAPES and (code == "'" or self.dialect.tuples):
            self.out.append(quoted(ESCAPES[code]))
        else:  # a backslash that means itself
            self.out.append("\\\\")
            return pos + 1
        return pos + 2


def number(word: str) -> str:
    """JSON of a number as Python or a person writes it."""
    try:
        value = int(word, 0)
    except ValueError:
        try:
            return json.dumps(float(word), allow_nan=False)
        except ValueError:
            raise Malformed from None
    return str(value)


def literal(cursor: Cursor, dialect: Dialect, sink: Callable[[str], None]) -> Step[None]:
    """Reads one value, telling its JSON to `sink` as it comes. Raises `Malformed`."""
    machine = Literal(dialect)
    while True:
        try:
            machine.run(cursor.text, cursor.pos, cursor.ended)
        finally:
            cursor.pos = machine.pos
            if machine.out:
                sink("".join(machine.out))
                machine.out.clear()
                cursor.keep(machine.comma)
        if machine.done:
            return
        yield from cursor.more()


def converted(text: str, dialect: Dialect = PYTHON) -> str | None:
    """The JSON of a whole literal, None if it is none."""
    machine = Literal(dialect)
    text = text.strip()
    try:
        machine.run(text, 0, ended=True)
    except Malformed:
        return None
    return "".join(machine.out) if machine.done and machine.pos == len(text) else None
