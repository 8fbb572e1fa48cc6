"""Reasoning: every family's marks, wherever the text is cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vjax.parsing.output import NamedCall, OutputParser, answer_parser
from vjax.parsing.pieces import Content, Piece, Reasoning, ToolArguments, ToolStart, joined
from vjax.parsing.reasoning import NAMES, OWN, ReasoningParser, continued, detect, marks_of, opening
from vjax.parsing.reasoning_table import MARKS

MARKED = [name for name in NAMES if MARKS[name].ends and not MARKS[name].format]


def parse(name: str, parts: list[str], opened: bool = False) -> list[Piece]:
    parser = ReasoningParser(marks_of(name), opened)
    return joined([piece for part in parts for piece in parser.feed(part)] + parser.finish())


def split(thoughts: str, answer: str) -> list[Piece]:
    return [Reasoning(thoughts), Content(answer)]


@pytest.mark.parametrize("name", MARKED)
def test_every_family(name: str) -> None:
    marks = marks_of(name)
    answer = "\n".join([*marks.wraps[:1], "two\nlines", *marks.wraps[1:]])
    text = f"one\n\nhm < {marks.ends[0][:3]}\n{marks.ends[0]}\n\n{answer}"
    expected = split(f"one\n\nhm < {marks.ends[0][:3]}", "two\nlines")
    assert parse(name, [text], opened=True) == expected
    for start in marks.starts:
        for opened in (True, False):
            assert parse(name, [f"\n{start}\n{text}"], opened) == expected
            assert parse(name, list(f"{start}{text}"), opened) == expected
    assert parse(name, ["just <text> [so]\n"]) == [Content("just <text> [so]\n")]
    assert parse(name, ["cut short\n"], opened=True) == [Reasoning("cut short\n")]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("mistral", "a[THINK]b[/THINK]\nc[THINK]d[/THINK]e", [*"abcde"]),
        ("cohere_command3", "<|START_THINKING|>b<|END_THINKING|><|START_RESPONSE|>c<|END_RESPONSE|>", ["", "b", "c"]),
        ("gemma4", "<|channel>thought\nb<channel|>c", ["", "b", "c"]),
        ("hunyuan_a13b", "<think>\nb\n</think>\n<answer>\nc</b>\n</answer>", ["", "b", "c</b>"]),
        ("hunyuan_a13b", "<answer>c</answer>", ["", "", "c"]),
    ],
)
def test_marks_within_answers(name: str, text: str, expected: list[str]) -> None:
    kinds = [Content, Reasoning, Content, Reasoning, Content]
    pieces = [kind(text) for kind, text in zip(kinds, expected, strict=False) if text]
    assert parse(name, [text]) == pieces
    assert parse(name, list(text)) == pieces


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "openai_gptoss",
            "<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>c<|return|>",
        ),
        ("inkling", "<|content_thinking|>b<|end_message|><|message_model|><|content_text|>c<|end_message|>"),
        ("muse", " to=self<|message|>b<|eom|><|start|>assistant to=user<|message|>c<|eot|>"),
    ],
)
def test_families_of_messages(name: str, text: str) -> None:
    for parts in ([text], list(text)):
        for format in (None, marks_of(name).format, "hermes"):
            parser = answer_parser(marks_of(name), False, format, [])
            assert joined([p for part in parts for p in parser.feed(part)] + parser.finish()) == split("b", "c")
    assert "".join([*marks_of(name).starts, "b", *marks_of(name).ends, marks_of(name).lead, "c"]) in text


def test_a_mark_in_the_middle_of_an_answer_is_text() -> None:
    text = "A tag such as <think> or </think> opens thoughts."
    assert parse("qwen3", [text]) == [Content(text)]


def test_a_call_ends_thoughts_and_stays() -> None:
    call = "<tool_call>f</tool_call>"
    assert parse("glm45", ["hm\n", *call], opened=True) == split("hm", call)


def test_a_family_may_leave_its_thoughts_in_the_answer() -> None:
    assert parse("minimax_m2_append_think", list("a</think>b")) == [Content("<think>a</think>b")]


@settings(max_examples=60)
@given(st.data())
def test_any_cut_gives_the_same(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(MARKED))
    marks = MARKS[name]
    bits = [*marks.starts, *marks.ends, *marks.until, *marks.wraps, *marks.drop]
    bits += [bit[:cut] for bit in bits for cut in (1, len(bit) // 2, len(bit) - 1)] + [
        "\n",
        " ",
        "a",
        "é😀",
        "<",
        "\n\n",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(bits), max_size=12)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    opened = data.draw(st.booleans())
    assert parse(name, parts, opened) == parse(name, [text], opened) == parse(name, list(text), opened)


@pytest.mark.parametrize(
    ("name", "variables", "prompt", "expected"),
    [
        ("qwen3", {}, "hi", "open"),
        ("qwen3", {"enable_thinking": False}, "hi", "closed"),
        ("qwen3", {"enable_thinking": False}, "<think>\n", "open"),
        ("qwen3", {}, "<think>\n\n</think>\n\n", "closed"),
        ("deepseek_r1", {"enable_thinking": False}, "hi", "open"),
        ("deepseek_v3", {}, "hi", "maybe"),
        ("deepseek_v3", {"thinking": True}, "hi", "open"),
        ("deepseek_v4", {"thinking": True, "reasoning_effort": "none"}, "hi", "closed"),
        ("deepseek_v4", {"thinking": True, "reasoning_effort": "high"}, "hi", "open"),
        ("glm45", {"thinking": False}, "hi", "closed"),
        ("hy_v3", {}, "hi", "maybe"),
        ("hy_v3", {"reasoning_effort": "low"}, "hi", "open"),
        ("hy_v4", {"reasoning_effort": "no_think"}, "hi", "closed"),
        ("minimax_m3", {"thinking_mode": "enabled"}, "hi", "open"),
        ("minimax_m3", {"thinking_mode": "disabled"}, "hi", "closed"),
        ("minimax_m3", {"thinking_mode": "adaptive"}, "hi", "maybe"),
        ("openai_gptoss", {}, "hi<|end|><|start|>assistant", "maybe"),
        ("mistral", {}, "hi", "maybe"),
        ("gemma4", {}, "<|channel>thought\n<channel|>", "closed"),
        (OWN, {"enable_thinking": True}, "hi", "maybe"),
    ],
)
def test_where_an_answer_begins(name: str, variables: dict[str, Any], prompt: str, expected: str) -> None:
    assert opening(marks_of(name), variables, prompt) == expected


def test_where_a_continued_answer_begins() -> None:
    marks = marks_of("qwen3")
    assert continued(marks, "<think>so far") == "open"
    assert continued(marks, "<think>so</think>far") == continued(marks, "far") == "closed"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages }}", None),
        ("{% if enable_thinking %}<think>\n\n</think>{% endif %}", OWN),
        ("<seed:think>", "seed_oss"),
        ("<|channel|>analysis<|message|>", "openai_gptoss"),
        ("[THINK]", "mistral"),
        ("<|channel>thought", "gemma4"),
        ("<think></think><answer>", "hunyuan_a13b"),
    ],
)
def test_detection(template: str, expected: str | None) -> None:
    assert detect(template) == expected


def test_answers_in_tags_where_the_template_asks_for_them() -> None:
    marks = marks_of(OWN, "Write your thoughts between <think></think> and your response between <response></response>")
    parser = ReasoningParser(marks, False)
    assert joined(parser.feed("<think>a</think> <response>b</response>") + parser.finish()) == split("a", "b")


def test_checkpoints_with_a_suffix() -> None:
    marks = marks_of("hy_v4", "x <think:opensource> y")
    assert (marks.starts, marks.ends) == (("<think:opensource>",), ("</think:opensource>",))
    assert marks_of("hy_v3", "", ["</think:a>", "<think:a>"]).starts == ("<think:a>",)
    with pytest.raises(ValueError, match="must be one of"):
        marks_of("nobody")


def test_a_named_call_behind_thoughts() -> None:
    parser = OutputParser(ReasoningParser(marks_of("qwen3"), True), NamedCall("f"))
    pieces = [piece for char in 'hm</think>\n{"a": 1}' for piece in parser.feed(char)] + parser.finish()
    assert joined(pieces) == [Reasoning("hm"), ToolStart(0, "f"), ToolArguments(0, '{"a": 1}')]
