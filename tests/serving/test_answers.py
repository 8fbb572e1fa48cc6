"""Answers token by token, in formats whose marks are special tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.test_thinking import TOKENS, holds
from tests.frontend.fakes import byte_tokenizer
from tests.serving.fakes import EOS, script_tokenizer
from vjax.engine.grammar import Compiler
from vjax.engine.messages import Vocabulary
from vjax.errors import ModelError
from vjax.frontend.text import GrowingText
from vjax.outputs import CompletionOutput
from vjax.parsing.output import answer_parser
from vjax.parsing.pieces import ToolStart
from vjax.sampling_params import SamplingParams
from vjax.serving.answers import Answer
from vjax.serving.formats import AnswerPlan, Formats
from vjax.serving.options import ServerOptions
from vjax.serving.protocol import ChatRequest
from vjax.serving.tools import STRICT, named_form, required_form, strict_form

TOKENIZER = script_tokenizer()
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def outputs(text: str, shown: frozenset[int], step: int) -> list[CompletionOutput]:
    """What an engine would tell, `step` tokens at a time."""
    ids = [*TOKENIZER.encode(text, add_special_tokens=False), EOS]
    growing, told = GrowingText(TOKENIZER, [], SamplingParams(), shown), []
    for at in range(0, len(ids), step):
        part = ids[at : at + step]
        for id in part:
            growing.add(id)
        if last := at + step >= len(ids):
            growing.finish()
        told.append(CompletionOutput(0, growing.take(), part, finish_reason="stop" if last else None))
    return told


def said(flags: dict[str, Any], template: str, text: str, step: int, prompt: str = "", **body: Any) -> tuple[Any, ...]:
    """Reasoning, content and calls, from the deltas."""
    formats = Formats.of(ServerOptions(**flags), TOKENIZER, template)
    plan = AnswerPlan(formats, ChatRequest(messages=[{"role": "user", "content": "x"}], **body))
    plan.begin(prompt, body.get("chat_template_kwargs") or {})
    answer = Answer(plan)
    shown = frozenset(formats.shown) if plan.parser() is not None else frozenset()
    told = outputs(text, shown, step)
    deltas = [delta for one in told for delta in answer.deltas(one)]
    calls: dict[int, list[str]] = {}
    for part in (part for delta in deltas for part in delta.get("tool_calls") or ()):
        call = calls.setdefault(part["index"], [part["function"].get("name"), ""])
        call[1] += part["function"]["arguments"]
    found = [(name, json.loads(arguments)) for name, arguments in calls.values()]
    reason = answer.ended(told[-1]).finish_reason
    texts = ("".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning", "content"))
    return (*texts, found, reason)


AUTO = {"reasoning_parser": "auto", "tool_call_parser": "auto", "enable_auto_tool_choice": True}


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_harmony(step: int) -> None:
    template = "<|channel|>analysis<|message|> <|channel|>commentary to=functions. <|start|>"
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes<|other|>.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.look <|message|>{"at": 1}'
    )
    expected = ("hm", "Yes.", [("look", {"at": 1})], "tool_calls")
    assert said(AUTO, template, text, step, tools=TOOLS) == expected
    array = text.split("Yes")[0] + '[{"name": "look", "parameters": {"at": 1}}]'
    assert said(AUTO, template, array, step, tools=TOOLS, tool_choice="required") == ("hm", "", *expected[2:])


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_special_marks_of_thoughts_without_calls(step: int) -> None:
    flags = {"reasoning_parser": "mistral"}
    text = "[THINK]hm[/THINK]So<|im_end|> be<|other|> it."
    assert said(flags, "", text, step) == ("hm", "So be it.", [], "stop")


def test_special_tokens_spelled_out_are_text() -> None:
    """Only a token that came is left out, not what merely reads like it."""
    spelled = "".join(["<|im", "_e", "nd|>"])
    formats = Formats.of(ServerOptions(reasoning_parser="mistral"), TOKENIZER, "")
    answer = Answer(AnswerPlan(formats, ChatRequest(messages=[{"role": "user", "content": "x"}])))
    one = CompletionOutput(0, f"It ends with {spelled}", [*spelled.encode(), EOS], finish_reason="stop")
    assert answer.deltas(one) == [{"content": f"It ends with {spelled}"}]


def test_a_stream_starts_a_call_before_its_arguments_are_there() -> None:
    formats = Formats.of(ServerOptions(tool_call_parser="hermes", enable_auto_tool_choice=True), TOKENIZER, "")
    plan = AnswerPlan(formats, ChatRequest(messages=[{"role": "user", "content": "x"}], tools=TOOLS))
    answer = Answer(plan)
    text = '<tool_call>{"name": "look", "arguments": {"at": "a long place"}}</tool_call>'
    parts = [d["tool_calls"][0] for one in outputs(text, frozenset(), 1) for d in answer.deltas(one)]
    assert parts[0]["function"] == {"name": "look", "arguments": ""} or parts[0]["function"]["arguments"] == "{"
    assert set(parts[0]) == {"index", "id", "type", "function"}
    assert all(set(part) == {"index", "function"} for part in parts[1:])
    assert len(parts) > 10


FUNCTIONS: dict[str, Any] = {
    "look": {"strict": True, "parameters": {"properties": {"at": {"type": "integer"}}, "required": ["at"]}},
    "a-b": {"parameters": {"properties": {"at": {"type": "integer"}}}},
}


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(Vocabulary(TOKENS, [EOS], [EOS], byte_tokenizer().backend.to_str()))


@pytest.mark.parametrize("format", STRICT)
def test_strict_calls_are_what_the_format_is_read_as(format: str, compiler: Compiler) -> None:
    start, before, behind, end = STRICT[format]

    def call(name: str, arguments: str) -> str:
        return f"{start}{before}{name}{behind}{arguments}{end}"

    for only_one in (False, True):
        form = strict_form(format, FUNCTIONS, only_one)
        assert form is not None
        assert holds(compiler, form, list(b"no call at all")) is True
        good = "Let me. " + call("look", '{"at": 3}')
        assert holds(compiler, form, list(good.encode())) is True
        for wrong in (call("look", '{"at": "3"}'), call("peek", "{}"), call("look", '{"at": 3, "b": 1}')):
            assert holds(compiler, form, list(wrong.encode())) is not True
    twice = good + call("a-b", '{"any": [1]}')
    form = strict_form(format, FUNCTIONS, False)
    assert form is not None
    assert holds(compiler, form, list(twice.encode())) is True
    parser = answer_parser(None, False, format, [])
    names = [piece.name for piece in parser.feed(twice) + parser.finish() if isinstance(piece, ToolStart)]
    assert names == ["look", "a-b"]
    assert strict_form(format, {"f": {}}, False) is None


def test_forced_calls_are_what_the_parser_reads(compiler: Compiler) -> None:
    text = '[{"name": "look", "parameters": {"at": 3}}, {"name": "a-b", "parameters": {"at": 1}}]'
    assert holds(compiler, required_form(FUNCTIONS, only_one=False), list(text.encode())) is True
    first = text.split("}, ")[0] + "}]"
    assert holds(compiler, required_form(FUNCTIONS, only_one=True), list(first.encode())) is True
    assert holds(compiler, required_form(FUNCTIONS, only_one=True), list(text.encode())) == len(first) - 1
    assert holds(compiler, required_form(FUNCTIONS, only_one=False), list(b"[]")) == 1
    parser = answer_parser(None, False, "json_array", [])
    names = [piece.name for piece in parser.feed(text) + parser.finish() if isinstance(piece, ToolStart)]
    assert names == ["look", "a-b"]


def test_schemas_of_calls_are_closed_unless_they_say_otherwise() -> None:
    text = {"type": "string"}
    inner = {"type": "object", "properties": {"a": text}}
    parameters = {
        "properties": {
            "one": inner,
            "many": {"type": "array", "items": inner},
            "any": {"allOf": [inner]},
            "text": text,
        },
        "$defs": {"free": {**inner, "additionalProperties": text}},
    }
    form = json.loads(str(named_form({"name": "f", "parameters": parameters}).json))
    shut = {**inner, "additionalProperties": False}
    assert form["properties"] == {
        "one": shut, "many": {"type": "array", "items": shut}, "any": {"allOf": [inner]}, "text": text
    }  # fmt: skip
    assert form["$defs"] == {"free": {**inner, "additionalProperties": text}}
    assert (form["type"], form["additionalProperties"]) == ("object", False)


def test_a_template_without_thoughts_or_calls() -> None:
    formats = Formats.of(ServerOptions(**AUTO), TOKENIZER, "{{ messages }}")
    assert (formats.marks, formats.calls, formats.auto_choice) == (None, None, False)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"reasoning_parser": "nobody"}, "--reasoning-parser"),
        ({"tool_call_parser": "nobody"}, "--tool-call-parser"),
        ({"enable_auto_tool_choice": True}, "--tool-call-parser"),
    ],
)
def test_flags_are_checked_at_start(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ModelError, match=word):
        ServerOptions(**options)
