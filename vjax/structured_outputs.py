"""`StructuredOutputsParams`: what the text of one request must look like. vLLM's names."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping
from typing import Any

import msgspec

from vjax.errors import RequestError

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
FLAGS = ("json_object", "disable_any_whitespace", "disable_additional_properties")
MAX_CHARS = 128 << 10
FIELD = "structured_outputs"
MOST_MARKS, LONGEST_MARK, MAX_BUDGET = 16, 1024, 1 << 20  # of thoughts
OWN = ("thinking",)  # fields that no request may set


class Thinking(msgspec.Struct, frozen=True, omit_defaults=True):
    """Free text that comes before the form: from one of `starts` to one of `ends`, of at most `budget` tokens.
    `opened`: it comes in any case, and the prompt may have started it. `lead` stands between it and the form."""

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    opened: bool = False
    budget: int | None = None
    lead: str = ""

    def __post_init__(self) -> None:
        field = f"{FIELD}.thinking"
        for marks in (self.starts, self.ends):
            if not 0 < len(marks) <= MOST_MARKS or any(not 0 < len(mark) <= LONGEST_MARK for mark in marks):
                raise RequestError(f"{field} needs 1 to {MOST_MARKS} marks of up to {LONGEST_MARK} characters.", field)
        for text in (*self.starts, *self.ends, *([self.lead] if self.lead else [])):
            _check_text(text, field)
        if self.budget is not None and not 0 <= self.budget <= MAX_BUDGET:
            raise RequestError(f"{field}.budget must be in [0, {MAX_BUDGET}], got {self.budget}.", field)


class StructuredOutputsParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exactly one of `json` (a schema), `regex`, `choice`, `grammar` (Lark or EBNF), `json_object` and
    `structural_tag`; or none with `thinking`. Objects are kept as JSON text.

    Raises `RequestError` naming the field.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    thinking: Thinking | None = None

    def __post_init__(self) -> None:
        for name in FLAGS:
            if not isinstance(getattr(self, name), (bool, type(None))):
                raise RequestError(f"{FIELD}.{name} must be true or false.", f"{FIELD}.{name}")
        given = self._given()
        if len(given) != 1 and (given or self.thinking is None):
            found = f"got {' and '.join(given)}" if given else "got none"
            raise RequestError(f"{FIELD} needs exactly one of {', '.join(KINDS)}; {found}.", FIELD)
        for name in ("json", "structural_tag"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                msgspec.structs.force_setattr(self, name, _as_json(value, f"{FIELD}.{name}"))
        if self.choice is not None:
            msgspec.structs.force_setattr(self, "choice", _choices(self.choice))
        for name in ("json", "regex", "grammar", "structural_tag", "whitespace_pattern"):
            _check_text(getattr(self, name), f"{FIELD}.{name}")

    def _given(self) -> list[str]:
        return [kind for kind in KINDS if getattr(self, kind) is not None and getattr(self, kind) is not False]

    @property
    def has_form(self) -> bool:
        return bool(self._given())

    @property
    def field(self) -> str:
        """Where an error in it is to be looked for."""
        given = self._given()
        return f"{FIELD}.{given[0]}" if given else "thinking_token_budget"

    @classmethod
    def for_schema(cls, schema: Mapping[str, Any] | str, **options: Any) -> StructuredOutputsParams:
        """Text that is JSON of this schema, such as the arguments of a tool."""
        return cls(json=schema if isinstance(schema, str) else dict(schema), **options)

    @classmethod
    def from_mapping(cls, values: Any) -> StructuredOutputsParams:
        """Of a request's `structured_outputs`."""
        if not isinstance(values, Mapping):
            raise RequestError(f"{FIELD} must be an object, got {type(values).__name__}.", FIELD)
        if unknown := sorted(str(key) for key in values if key in OWN or key not in cls.__struct_fields__):
            raise RequestError(f"{FIELD} holds the unknown field {unknown[0]!r}.", f"{FIELD}.{unknown[0]}")
        return cls(**{key: value for key, value in values.items() if value is not None})

    @classmethod
    def from_response_format(cls, form: Any) -> StructuredOutputsParams | None:
        """Of a request's `response_format`; None for plain text."""
        kind = form.get("type", "text") if isinstance(form, Mapping) else None
        if kind == "text":
            return None
        if kind == "json_object":
            return cls(json_object=True)
        if kind == "json_schema":
            inner = form.get("json_schema")
            schema = inner.get("schema", {}) if isinstance(inner, Mapping) else None
            if not isinstance(schema, (Mapping, bool)):
                raise RequestError("response_format.json_schema needs a schema.", "response_format")
            return cls(json=jsonlib.dumps(schema) if isinstance(schema, bool) else dict(schema))
        if kind == "structural_tag":
            return cls(structural_tag=dict(form))
        raise RequestError(
            f"response_format.type must be text, json_object, json_schema or structural_tag, got {kind!r}.",
            "response_format",
        )


def _as_json(value: Any, field: str) -> str:
    try:
        return jsonlib.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{field} cannot be written as JSON: {error}.", field) from None


def _choices(value: Any) -> tuple[str, ...]:
    field = f"{FIELD}.choice"
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(one, str) and one for one in value):
        raise RequestError(f"{field} must be a list of non-empty strings.", field)
    if sum(map(len, value)) > MAX_CHARS:
        raise RequestError(f"{field} holds more than {MAX_CHARS} characters.", field)
    for one in value:
        _check_text(one, field)
    return tuple(value)


def _check_text(value: Any, field: str) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:
        raise RequestError(f"{field} must be text, and not empty.", field)
    if len(value) > MAX_CHARS:
        raise RequestError(f"{field} has {len(value)} characters; at most {MAX_CHARS} are taken.", field)
    if "\0" in value:
        raise RequestError(f"{field} holds a NUL character.", field)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{field} holds a lone surrogate, which is not valid Unicode.", field) from None
