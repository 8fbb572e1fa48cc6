"""Structural tags as Lark rules: text that is free until a trigger appears, then follows that trigger's tag.

Both spellings: `structures` with `triggers`, and a `format` made of parts (tag, triggered_tags, sequence, ...).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ANY = r"(.|\n)*"
MAX_DEPTH = 32


def to_lark(text: str, special: Mapping[str, int], schema_options: Mapping[str, Any]) -> str:
    """`special`: texts of special tokens, which no plain text can spell, to their ids. Raises `ValueError`."""
    tag = json.loads(text)
    if not isinstance(tag, dict):
        raise ValueError("a structural tag must be an object")
    rules = Rules(special, schema_options)
    form: Any = tag.get("format")
    if "structures" in tag:
        tags = [
            {
                "begin": one.get("begin"),
                "content": {"type": "json_schema", "json_schema": one.get("schema")},
                "end": one.get("end"),
            }
            for one in _objects(tag, "structures")
        ]
        form = {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}
    start = rules.part(form)
    return "\n".join(["%llguidance {}", f"start: {start}", *rules.lines, ""])


class Rules:
    """Collects rules; its methods return expressions that refer to them."""

    def __init__(self, special: Mapping[str, int], schema_options: Mapping[str, Any]) -> None:
        self.lines: list[str] = []
        self.special, self.schema_options = special, schema_options
        names = sorted(filter(None, special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, names))) if names else None
        self._depth = 0
        self._kinds: dict[str, Callable[[dict[str, Any]], str]] = {
            "const_string": lambda form: self.literal(_text(form, "value")),
            "json_schema": self.schema,
            "any_text": lambda form: f"/{ANY}/",
            "regex": lambda form: _regex(_text(form, "pattern")),
            "sequence": lambda form: self.rule(" ".join(map(self.part, _objects(form, "elements")))),
            "or": lambda form: self.rule(" | ".join(map(self.part, _objects(form, "elements")))),
            "tag": lambda form: self.rule(f"{self.literal(_text(form, 'begin'))} {self.inside(form)}"),
            "triggered_tags": self.triggered,
            "tags_with_separator": self.separated,
        }

    def part(self, form: Any) -> str:
        kind = form.get("type") if isinstance(form, dict) else None
        if not isinstance(kind, str) or kind not in self._kinds:
            raise ValueError(f"a part has the type {kind!r}; known: {', '.join(self._kinds)}")
        if self._depth == MAX_DEPTH:
            raise ValueError(f"parts are nested more than {MAX_DEPTH} deep")
        self._depth += 1
        found = self._kinds[kind](form)
        self._depth -= 1
        return found

    def rule(self, body: str, lazy: bool = False) -> str:
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def schema(self, form: dict[str, Any]) -> str:
        schema = form.get("json_schema")
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise ValueError("a part of type json_schema needs a json_schema")
        return self.rule("%json " + json.dumps({**schema, "x-guidance": dict(self.schema_options)}))

    def literal(self, text: str) -> str:
        """Text in which special tokens stand for themselves."""
        parts, at = [], 0
        for match in self._special.finditer(text) if self._special is not None else ():
            parts += [_quote(text[at : match.start()]), f"<[{self.special[match.group()]}]>"]
            at = match.end()
        return " ".join(part for part in [*parts, _quote(text[at:])] if part) or '""'

    def until(self, text: str) -> str:
        """Anything, up to the first place where `text` stands."""
        if self._special is not None and self._special.match(text):
            return self.rule(f"/{ANY}/ {self.literal(text)}")
        return self.rule(f"/{ANY}{_escape(text)}/", lazy=True)

    def limited(self, tokens: int) -> str:
        """Anything, of at most so many tokens."""
        name = self.rule(f"/{ANY}/")
        self.lines[-1] = self.lines[-1].replace(name, f"{name}[max_tokens={tokens}]", 1)
        return name

    def inside(self, tag: dict[str, Any]) -> str:
        """The content of a tag and its end."""
        content, end = tag.get("content"), tag.get("end")
        ends = end if isinstance(end, list) else [end]
        if not ends or not all(isinstance(one, str) for one in ends):
            raise ValueError("a tag needs an end, text or a list of texts")
        if isinstance(content, dict) and content.get("type") == "any_text" and all(ends):
            return self.rule(" | ".join(map(self.until, ends)))
        return self.rule(f"{self.part(content)} ({' | '.join(map(self.literal, ends))})")

    def triggered(self, form: dict[str, Any]) -> str:
        triggers = form.get("triggers")
        if not isinstance(triggers, list) or not triggers or not all(isinstance(t, str) and t for t in triggers):
            raise ValueError("triggers must be a list of non-empty texts")
        bodies: dict[str, list[str]] = {}
        for tag in _objects(form, "tags"):
            begin = _text(tag, "begin")
            trigger = next((one for one in triggers if begin.startswith(one)), None)
            if trigger is None:
                raise ValueError(f"no trigger begins the tag {begin!r}")
            body = f"{self.literal(begin[len(trigger) :])} {self.inside(tag)}"
            bodies.setdefault(trigger, []).append(body)
        one = self.rule(" | ".join(f"{self.until(trigger)} ({' | '.join(of)})" for trigger, of in bodies.items()))
        if form.get("stop_after_first"):
            return one if form.get("at_least_one") else f"({one} | /{ANY}/)"
        return self.rule(f"{one}{'+' if form.get('at_least_one') else '*'} /{ANY}/")

    def separated(self, form: dict[str, Any]) -> str:
        one = self.rule(" | ".join(self.part({"type": "tag", **tag}) for tag in _objects(form, "tags")))
        more = "" if form.get("stop_after_first") else f" ({self.literal(_text(form, 'separator'))} {one})*"
        return self.rule(f"{one}{more}" if form.get("at_least_one") else f"({one}{more})?")


def _objects(form: Mapping[str, Any], name: str) -> Sequence[dict[str, Any]]:
    value = form.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise ValueError(f"{name} must be a list of objects, and not empty")
    return value


def _text(form: Mapping[str, Any], name: str) -> str:
    value = form.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text")
    return value


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _regex(pattern: str) -> str:
    from llguidance import regex_to_lark

    return f"/{regex_to_lark(pattern)}/"


def _escape(text: str) -> str:
    # Rust's syntax: a backslash before < or > would be the edge of a word.
    return re.sub(r"([\\.+*?()|\[\]{}^$/&~#-])", r"\\\1", text).replace("\n", r"\n")
