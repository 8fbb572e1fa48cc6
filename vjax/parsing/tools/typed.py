"""Arguments that a format writes as bare text, typed by the tool's JSON schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vjax.parsing.tools.cursor import Malformed
from vjax.parsing.tools.literal import NUMBER, converted, number

ANY = frozenset({"null", "boolean", "integer", "number", "object", "array", "string"})
STRING = frozenset({"string"})
ALIASES = {"dict": "object", "list": "array", "tuple": "array", "float": "number", "int": "integer", "bool": "boolean"}
MOST_VARIANTS = 1000  # of a schema's alternatives, references followed
OF_PYTHON = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


class Schema:
    """One place in a JSON schema. References are followed within the schema (`#/...`)."""

    def __init__(self, node: Any, root: Any) -> None:
        self._root = root
        self._variants = list(_variants(node, root))
        self.kinds = frozenset(kind for variant in self._variants for kind in _kinds(variant)) or ANY

    def child(self, key: str) -> Schema | None:
        """The place of an object's property; None if the schema does not say."""
        for variant in self._variants:
            properties = variant.get("properties")
            if isinstance(properties, dict) and key in properties:
                return Schema(properties[key], self._root)
        return self._under("additionalProperties")

    def items(self) -> Schema | None:
        """The place of an array's elements."""
        return self._under("items")

    def _under(self, word: str) -> Schema | None:
        for variant in self._variants:
            if isinstance(node := variant.get(word), dict):
                return Schema(node, self._root)
        return None


def _variants(node: Any, root: Any) -> Iterator[dict[str, Any]]:
    waiting = [node]
    seen: set[int] = set()
    while waiting and len(seen) < MOST_VARIANTS:
        node = waiting.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(nodes := node.get(word), list):
                waiting.extend(nodes[:MOST_VARIANTS])
        if isinstance(reference := node.get("$ref"), str):
            waiting.append(_at(reference, root))


def _at(reference: str, root: Any) -> Any:
    if not reference.startswith("#"):
        return None
    for part in reference.split("/")[1:]:
        root = root.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else None
    return root


def _kinds(node: dict[str, Any]) -> Iterator[str]:
    written = node.get("type")
    for kind in written if isinstance(written, list) else [written]:
        if isinstance(kind, str) and (kind := ALIASES.get(kind, kind)) in ANY:
            yield kind
    values = node["enum"] if isinstance(node.get("enum"), list) else [node["const"]] if "const" in node else []
    if written is None:
        yield from {OF_PYTHON.get(type(value), "null") for value in values}
        if not values and "properties" in node:
            yield "object"
        if not values and "items" in node:
            yield "array"
    if node.get("nullable") is True or None in values:
        yield "null"


def typed(text: str, kinds: frozenset[str]) -> str:
    """The JSON of an argument of one of these types; of a string, where it is none of the others."""
    word = text.strip()
    small = word.lower() if len(word) < 6 else ""
    if kinds == STRING:
        return json.dumps(text, ensure_ascii=False)
    if "null" in kinds and small in ("null", "none"):
        return "null"
    if "boolean" in kinds and small in ("true", "false"):
        return small
    if kinds & {"integer", "number"} and word[:1] in "-+.0123456789" and (found := _number(word, kinds)):
        return found
    if (kind := {"{": "object", "[": "array", "(": "array"}.get(word[:1])) in kinds and kind:
        found = strict(word) or converted(word)
        if found:
            return found
    return json.dumps(text, ensure_ascii=False)


def _number(word: str, kinds: frozenset[str]) -> str | None:
    try:
        found = word if NUMBER.match(word) else number(word)
    except Malformed:
        return None
    if "number" not in kinds and not found.lstrip("-").isdigit() and (value := float(found)).is_integer():
        return str(int(value))
    return found


def strict(text: str) -> str | None:
    """`text` if it is JSON."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return text


def _refuse(word: str) -> None:
    raise ValueError(word)
