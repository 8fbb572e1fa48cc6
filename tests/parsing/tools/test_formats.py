"""Every format: what a model writes in it, cut in any way, gives its text and its typed calls."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parsing.tools.cases import BOTH, TEXTS, answer, joined, pieces_of
from vjax.parsing.pieces import Content, ToolArguments, ToolStart
from vjax.parsing.tools import NAMES, needs_special_tokens, tool_parser

CALLS_ONLY = {"llama3_json", "llama4_json", "pythonic", "llama4_pythonic", "granite", "xlam", "cohere_command3", "functiongemma", "json_array"}  # fmt: skip


@pytest.mark.parametrize("name", [*NAMES, "json_array"])
def test_text_and_calls(name: str) -> None:
    reasoning, content, calls = answer(pieces_of(name, [TEXTS[name]]))
    assert calls == BOTH
    assert content == ("" if name in CALLS_ONLY else "Let me look.")
    assert reasoning == ("Hm." if name in ("openai", "inkling") else "")


@pytest.mark.parametrize("name", [*NAMES, "json_array"])
def test_one_character_or_one_token_at_a_time(name: str) -> None:
    text = TEXTS[name]
    whole = joined(pieces_of(name, [text]))
    assert joined(pieces_of(name, list(text))) == whole
    assert joined(pieces_of(name, re.findall(r"\s*\w+|\W", text))) == whole


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_cut_of_any_damaged_text(data: st.DataObject) -> None:
    """Text that lost a part, or had another put in, may be no call: it still means the same however it is cut."""
    name = data.draw(st.sampled_from(sorted(TEXTS)))
    text = TEXTS[name]
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    text = text[:start] + data.draw(st.sampled_from(["", " ", "{", "<", '"', "]", text[end : end + 9]])) + text[end:]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    parts = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert joined(pieces_of(name, parts)) == joined(pieces_of(name, [text])) == joined(pieces_of(name, list(text)))


@pytest.mark.parametrize("name", [*NAMES, "json_array"])
def test_text_without_calls_stays_as_it_is(name: str) -> None:
    text = "  Brackets [1], {a: 2}, f(x) and 3 < 4 > 2;\n\n```py\nfunctools.reduce(f)\n``` \n"
    assert joined(pieces_of(name, list(text))) == [("Content", -1, text)]


def test_a_call_starts_when_its_name_is_known_and_arguments_come_as_they_are_written() -> None:
    parser = tool_parser("hermes", [])
    assert parser.feed("Hi.\n<tool_") == [Content("Hi.")]
    assert parser.feed('call>{"name": "f",') == [ToolStart(0, "f")]
    assert parser.feed(' "arguments": {"a": "b') == [ToolArguments(0, '{"a": "b')]
    assert parser.feed('c"}}</tool_call>') == [ToolArguments(0, 'c"}')]
    assert parser.finish() == []


def test_a_string_in_tags_comes_as_it_is_written() -> None:
    parser = tool_parser("qwen3_coder", [])
    assert parser.feed("<tool_call>\n<function=f>\n<parameter=code>\nx = ") == [
        ToolStart(0, "f"),
        ToolArguments(0, '{"code": "x = '),
    ]
    assert parser.feed('"1"\n') == [ToolArguments(0, '\\"1\\"')]
    assert parser.feed("y\n</parameter>\n</function>") == [ToolArguments(0, '\\ny"}')]


def test_ids() -> None:
    kimi, _ = (piece for piece in pieces_of("kimi_k2", [TEXTS["kimi_k2"]]) if isinstance(piece, ToolStart))
    assert kimi.id == "functions.weather:0"
    first, second = (piece for piece in pieces_of("mistral", [TEXTS["mistral"]]) if isinstance(piece, ToolStart))
    assert re.fullmatch("[a-zA-Z0-9]{9}", first.id or "")
    assert first.id != second.id
    assert [piece.id for piece in pieces_of("hermes", [TEXTS["hermes"]]) if isinstance(piece, ToolStart)] == [None] * 2


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}]', "", [("f", {"a": 1})]),
        ("hermes", "<tool_call>{'name': 'f', 'arguments': {'a': True,}}</tool_call>", "", [("f", {"a": True})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", {"a": 1})]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", {})]),
        ("hermes", '<tool_call>{"type": "function", "function": {"name": "f", "arguments": {}}}', "", [("f", {})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b\n\\d"}}', "", [("f", {"a": "b\n\\d"})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool', "", [("f", {})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n\nDone. ', "Done. ", [("f", {})]),
        ("llama3_json", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
        ("qwen3_coder", "<function=f>\n<parameter=a>\n1\n<parameter=b>\n2\n</function>", "", [("f", {"a": "1", "b": "2"})]),
        ("pythonic", "[f(a=-1, b=.5, c='''it's''', d=1_000), g()] done", " done", [("f", {"a": -1, "b": 0.5, "c": "it's", "d": 1000}), ("g", {})]),  # fmt: skip
        ("xlam", '<think>x</think>\n[{"name": "f", "arguments": {}}]', "<think>x</think>", [("f", {})]),
        ("openai", " to=functions.f<|channel|>commentary<|message|>{}<|call|>", "", [("f", {})]),
        ("muse", ' to=self<|message|>Hm.<|eom|><|start|>assistant<|message|>Hi.<|eot|>', "Hi.", []),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>", "", [("f", {})]),  # noqa: RUF001
    ],
)  # fmt: skip
def test_what_models_also_write(name: str, text: str, content: str, calls: list[tuple[str, object]]) -> None:
    _, said, found = answer(pieces_of(name, list(text), tools=[]))
    assert (said.strip() if calls else said) == content.strip()
    assert found == calls


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>\n[1, 2]\n</tool_call>"),
        ("hermes", '<tool_call>{"name": "two words", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f'),
        ("glm45", "The tag <tool_call> begins a call.\n"),
        ("openai", "<|channel|>commentary to=functions.f"),
        ("pythonic", "[see(1)](http://x)"),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_end|>"),
    ],
)
def test_what_is_no_call_comes_back(name: str, text: str) -> None:
    assert joined(pieces_of(name, list(text))) == [("Content", -1, text)]


def test_a_call_that_breaks_off_keeps_what_it_said_and_loses_nothing() -> None:
    pieces = pieces_of("hermes", ['<tool_call>{"name": "f", "arguments": {"a": 1, oops}}</tool_call>'])
    assert pieces == [ToolStart(0, "f"), ToolArguments(0, '{"a": 1'), Content(", oops}}</tool_call>")]


def test_names() -> None:
    assert {"hermes", "openai", "kimi_k2", "granite-20b-fc"} <= set(NAMES)
    assert needs_special_tokens("openai")
    assert not needs_special_tokens("hermes")
    with pytest.raises(ValueError, match="tool_call_parser must be one of"):
        tool_parser("nope", [])
