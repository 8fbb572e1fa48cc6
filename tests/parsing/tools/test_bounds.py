"""Text that is meant to harm: time stays in proportion to its length, and none of it is lost."""

from __future__ import annotations

import time

import pytest

from tests.parsing.tools.cases import joined, pieces_of
from vjax.parsing.tools import NAMES
from vjax.parsing.tools.table import FORMATS

SIZE = 1_000_000
BEGUN = '<tool_call>{"name": "f", "arguments": '
VALUE = "<tool_call><function=f><parameter=a>"


def filled(start: str, unit: str, size: int = SIZE) -> str:
    return start + unit * (size // len(unit))


def seconds(name: str, text: str) -> float:
    start = time.process_time()
    pieces_of(name, [text])
    return time.process_time() - start


HARMFUL = {
    "lists in lists": ("hermes", BEGUN, "["),
    "objects in objects": ("hermes", BEGUN, '{"a":'),
    "wrong escapes": ("hermes", BEGUN + '{"a": "', "\nx\\d"),
    "many small lists": ("hermes", BEGUN + "{", '"a":[1],'),
    "an endless name": ("hermes", '<tool_call>{"name": "', "x"),
    "only beginnings": ("hermes", "", "<tool_call>"),
    "white space": ("hermes", "<tool_call>", " "),
    "headers in headers": ("kimi_k2", "", "<|tool_call_begin|>"),
    "quotes in quotes": ("pythonic", "[f(a='", '"'),
    "many calls": ("pythonic", "[", "f(a=1),"),
    "beginnings of ends": ("gemma4", '<|tool_call>call:f{a:<|"|>', "<|"),
    "nearly ends": ("qwen3_coder", VALUE, "</parameter"),
    "tags in tags": ("minimax_m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">', "]<]minimax[>[<a>"),
}


@pytest.mark.parametrize("harm", HARMFUL)
def test_a_megabyte_takes_seconds(harm: str) -> None:
    name, start, unit = HARMFUL[harm]
    assert seconds(name, filled(start, unit)) < 5  # with the square of its length it would be hours


@pytest.mark.parametrize("name", NAMES)
def test_twice_the_text_takes_twice_the_time(name: str) -> None:
    """Markers without calls behind them, a few characters at a time; slower growth than with the square."""
    unit = (FORMATS[name].starts or FORMATS[name].bare)[0] + " x"

    def cost(size: int) -> float:
        parts = [text[i : i + 5] for text in [filled("", unit, size)] for i in range(0, len(text), 5)]
        return min(once(parts) for _ in range(3))

    def once(parts: list[str]) -> float:
        start = time.process_time()
        pieces_of(name, parts)
        return time.process_time() - start

    assert cost(20_000) < 6 * max(cost(10_000), 0.01)


def test_arguments_of_a_megabyte() -> None:
    text = '{"text": "' + "line\\n" * (SIZE // 6) + '", "list": [' + "1, " * (SIZE // 3) + "2]}"
    pieces = joined(pieces_of("hermes", ['<tool_call>{"name": "f", "arguments": ' + text + "}</tool_call>"]))
    assert pieces == [("start", 0, "f"), ("ToolArguments", 0, text)]


def test_what_is_too_deep_or_too_much_is_text() -> None:
    deep = '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 1000
    pieces = joined(pieces_of("hermes", [deep]))
    assert [kind for kind, *_ in pieces] == ["start", "ToolArguments", "Content"]
    assert deep.endswith(pieces[1][2] + pieces[2][2])
    many = joined(pieces_of("hermes", ['<tool_call>{"name":"f","arguments":{}}</tool_call>' * 1500]))
    assert [kind for kind, *_ in many].count("start") == 1000
    assert many[-1][2].count("<tool_call>") == 500
