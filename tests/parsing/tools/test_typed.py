"""Arguments that are written as bare text take the types of the tool's schema."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parsing.tools.cases import answer, pieces_of

DEFS = {"Day": {"enum": ["mon", "tue"]}, "Box": {"type": "object"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}]}}


def value(schema: Any, text: str) -> Any:
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": DEFS}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    call = f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    return answer(pieces_of("qwen3_coder", list(call), tools))[2][0][1]["a"]


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, " two\n\nlines ", " two\n\nlines "),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, "many", "many"),
        ({"type": "number"}, "-1.5e3", -1500.0),
        ({"type": "number"}, ".5", 0.5),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "null"}, "None", None),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "none of these", "none of these"),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "five", "five"),
        ({"oneOf": [{"type": "array"}, {"type": "null"}]}, "[1, 'b']", [1, "b"]),
        ({"type": "array"}, '["a", {"b": null}]', ["a", {"b": None}]),
        ({"type": "object"}, "{'a': None, 'b': (1, True)}", {"a": None, "b": [1, True]}),
        ({"type": "object"}, "[1]", "[1]"),
        ({"type": "object"}, "{broken", "{broken"),
        ({"$ref": "#/$defs/Box"}, '{"a": 1}', {"a": 1}),
        ({"$ref": "#/$defs/Day"}, "mon", "mon"),
        ({"$ref": "#/$defs/Loop"}, "5", 5),
        ({"$ref": "#/$defs/Absent"}, "true", True),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": False}, "false", False),
        ({"properties": {}}, "{}", {}),
        ({}, "true", True),
        ({}, "plain", "plain"),
        ({"type": "dict"}, '{"a": 1}', {"a": 1}),
        ("no schema", "5", 5),
    ],
)
def test_types(schema: Any, text: str, expected: Any) -> None:
    found = value(schema, text)
    assert found == expected
    assert type(found) is type(expected)


def test_arguments_that_no_tool_declares_are_strings() -> None:
    call = "<tool_call>\n<function=g>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>"
    assert answer(pieces_of("qwen3_coder", [call], []))[2] == [("g", {"a": "5"})]


def test_a_format_that_states_types_is_believed() -> None:
    call = '<|open|>tools<|sep|><|open|>call tool="g"<|sep|><|open|>argument key="a" type="{}"<|sep|>5<|close|>argument'
    call += "<|sep|><|close|>call<|sep|>"
    assert answer(pieces_of("kimi_k3", [call.format("number")], []))[2] == [("g", {"a": 5})]
    assert answer(pieces_of("kimi_k3", [call.format("string")], []))[2] == [("g", {"a": "5"})]


def test_wild_schemas_do_no_harm() -> None:
    wide: dict[str, Any] = {"anyOf": [{"$ref": "#/properties/a"}] * 5000}
    assert value(wide, "5") == 5
    assert value({"type": "array"}, "[" * 100_000) == "[" * 100_000
    assert value({"type": "integer"}, "9" * 5000) == "9" * 5000  # readers of JSON refuse such a number
