"""The tools of a chat request: checked, chosen, and as a form that the answer has to take."""

from __future__ import annotations

from typing import Any

from vjax.errors import RequestError
from vjax.structured_outputs import StructuredOutputsParams

MAX_NAME = 256
DEEPEST = 32  # schemas within schemas that are closed
# How formats write a call whose arguments are JSON behind a marker that is text: what begins it, before and behind the
# name, and what ends it. Only of these can the arguments be held to a schema while the answer is otherwise free.
HERMES = ("<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>")
STRICT = {
    "hermes": HERMES,
    "qwen3_json": HERMES,
    "granite4": HERMES,
    "longcat": ("<longcat_tool_call>", '\n{"name": "', '", "arguments": ', "}\n</longcat_tool_call>"),
    "internlm": ("<|action_start|><|plugin|>", '\n{"name": "', '", "parameters": ', "}<|action_end|>"),
}


def check_tools(tools: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The functions by name. Raises `RequestError` naming the one that is not well-formed."""
    functions: dict[str, dict[str, Any]] = {}
    for at, tool in enumerate(tools):
        where = f"tools.{at}"
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict):
            raise RequestError(f"{where} must be of type function and hold a function.", where)
        name = function.get("name")
        if not isinstance(name, str) or len(name) > MAX_NAME or name.split() != [name] or set(name) & set('"\\'):
            raise RequestError(
                f"{where}.function.name must be one word of 1 to {MAX_NAME} characters, without quotes.", where
            )
        if not isinstance(function.get("parameters"), (dict, type(None))):
            raise RequestError(f"{where}.function.parameters must be a JSON schema, an object.", where)
        functions[name] = function
    return functions


def check_choice(choice: Any, functions: dict[str, dict[str, Any]]) -> str | None:
    """The name of a tool that has to be called. Raises `RequestError` for a choice that cannot be made."""
    named = None
    if isinstance(choice, dict):
        function = choice.get("function")
        named = function.get("name") if choice.get("type") == "function" and isinstance(function, dict) else None
        if not isinstance(named, str):
            raise RequestError("tool_choice must be auto, none, required, or a function with its name.", "tool_choice")
    elif choice not in (None, "auto", "none", "required"):
        raise RequestError(f"tool_choice must be auto, none, required or a function, got {choice!r}.", "tool_choice")
    if choice not in (None, "auto", "none") and not functions:
        raise RequestError("tool_choice needs tools.", "tool_choice")
    if named is not None and named not in functions:
        raise RequestError(f"tool_choice names {named!r}, which is not among the tools.", "tool_choice")
    return named


def named_form(function: dict[str, Any]) -> StructuredOutputsParams:
    """Text that is the arguments of this function."""
    return StructuredOutputsParams.for_schema(_schema(function))


def required_form(functions: dict[str, dict[str, Any]], only_one: bool) -> StructuredOutputsParams:
    """`[{"name": ..., "parameters": ...}, ...]`, of at least one call. Each schema keeps its own `$defs` this way."""
    tags = [_tag('{"name": "', '", "parameters": ', "}", name, function) for name, function in functions.items()]
    calls = {"type": "tags_with_separator", "tags": tags, "separator": ", ", "at_least_one": True}
    parts = [_const("["), {**calls, "stop_after_first": only_one}, _const("]")]
    return StructuredOutputsParams(structural_tag={"format": {"type": "sequence", "elements": parts}})


def strict_form(
    format: str | None, functions: dict[str, dict[str, Any]], only_one: bool
) -> StructuredOutputsParams | None:
    """Free text in which calls fit the schemas of tools with `strict`; None where none is, or the format has none."""
    if format not in STRICT or not any(function.get("strict") for function in functions.values()):
        return None
    trigger, before, behind, end = STRICT[format]
    tags = [
        _tag(trigger + before, behind, end, name, function if function.get("strict") else {})
        for name, function in functions.items()
    ]
    triggered = {"type": "triggered_tags", "triggers": [trigger], "tags": tags, "stop_after_first": only_one}
    return StructuredOutputsParams(structural_tag={"format": triggered})


def _schema(function: dict[str, Any]) -> dict[str, Any]:
    """Arguments are an object in any case, and of the properties that are listed, unless the schema says otherwise."""
    schema: dict[str, Any] = _closed({"type": "object", **(function.get("parameters") or {})})
    return schema


def _closed(schema: Any, depth: int = 0) -> Any:
    """What has `allOf` gets its properties from elsewhere, too."""
    if not isinstance(schema, dict) or depth == DEEPEST or "allOf" in schema:
        return schema
    closed = dict(schema)
    for name in ("properties", "$defs", "definitions"):
        if isinstance(inner := schema.get(name), dict):
            closed[name] = {key: _closed(value, depth + 1) for key, value in inner.items()}
    for name in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(name), list):
            closed[name] = [_closed(one, depth + 1) for one in choices]
    if "items" in schema:
        closed["items"] = _closed(schema["items"], depth + 1)
    open_by_itself = {"patternProperties", "unevaluatedProperties", "$ref", "anyOf", "oneOf"} & schema.keys()
    if schema.get("properties") and not open_by_itself:
        closed.setdefault("additionalProperties", False)
    return closed


def _const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def _tag(before: str, behind: str, end: str, name: str, function: dict[str, Any]) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": _schema(function)}
    return {"begin": before + name + behind, "content": content, "end": end}
