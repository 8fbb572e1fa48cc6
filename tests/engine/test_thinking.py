"""Forms that hold behind free thoughts, and budgets of thoughts, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.fakes import byte_tokenizer
from vjax.engine.grammar import Compiler, Grammar, Masks
from vjax.engine.messages import Vocabulary
from vjax.errors import RequestError
from vjax.structured_outputs import StructuredOutputsParams, Thinking

EOS, THINK, END, CHANNEL, FREE = 256, 257, 258, 259, 260
TOKENS = [bytes([byte]) for byte in range(256)] + [b"<eos>", b"<think>", b"</think>", b"<|channel|>", b"<|x|>"]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False, "required": ["a"]}
JSON = b'{"a":1}'
Tokens = list[int]


@pytest.fixture(scope="module", params=["plain", "special"])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """The marks are tokens, which vocabularies call special or not."""
    special = [EOS, CHANNEL, FREE] + ([THINK, END] if request.param == "special" else [])
    return Compiler(Vocabulary(TOKENS, special, [EOS], byte_tokenizer().backend.to_str()))


def fits(compiler: Compiler, thinking: dict[str, Any], tokens: Tokens, **form: Any) -> bool | int:
    """`holds` for a form behind thoughts."""
    marks = Thinking(**{"starts": ("<think>",), "ends": ("</think>",), **thinking})
    return holds(compiler, StructuredOutputsParams(thinking=marks, **form), tokens)


def holds(compiler: Compiler, spec: StructuredOutputsParams, tokens: Tokens) -> bool | int:
    """Whether the grammar takes these tokens and may end there; else the place of the first that it does not take."""
    grammar = Grammar(compiler.submit(spec))
    compiler.submit(spec).result()
    assert grammar.start()
    masks, row = Masks(compiler.vocabulary), np.zeros((1, -(-len(TOKENS) // 32)), np.int32)
    for at, token in enumerate([*tokens, EOS]):
        masks.fill([grammar], row)
        if not row[0, token // 32] >> token % 32 & 1:
            return at
        if token != EOS:
            grammar.accept(token)
    return True


FORMS: list[tuple[dict[str, Any], bytes]] = [
    ({"json": SCHEMA}, JSON),
    ({"json_object": True}, b'{"z": []}'),
    ({"regex": "a+"}, b"aaa"),
    ({"choice": ("yes", "no")}, b"no"),
    ({"grammar": 'start: "x" Y\nY: "y"+'}, b"xyy"),
    ({"grammar": 'root ::= "x" y\ny ::= "y"'}, b"xy"),
    ({"structural_tag": {"format": {"type": "const_string", "value": "k"}}}, b"k"),
]


@pytest.mark.parametrize(("form", "text"), FORMS)
def test_every_form_holds_behind_thoughts_only(compiler: Compiler, form: dict[str, Any], text: bytes) -> None:
    thoughts = [THINK, *b"\n{hm", END, *b"\n\n"]
    assert fits(compiler, {"opened": True}, [*thoughts, *text], **form) is True
    assert fits(compiler, {"opened": True}, [*thoughts[1:], *text], **form) is True
    assert fits(compiler, {"opened": True}, [*thoughts, *b"~"], **form) == len(thoughts)
    assert fits(compiler, {"opened": True}, list(text), **form) == len(text)  # not the end yet
    assert fits(compiler, {}, [*thoughts, *text], **form) is True
    assert fits(compiler, {}, list(text), **form) is True
    assert fits(compiler, {}, list(b"~hm"), **form) == 0


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget(compiler: Compiler, budget: int) -> None:
    thoughts = list(b"a long thought")
    thinking = {"opened": True, "budget": budget}
    assert fits(compiler, thinking, thoughts) == budget
    assert fits(compiler, thinking, [*thoughts[:budget], END, *b"any", FREE, *b"thing"]) is True
    assert fits(compiler, thinking, [*thoughts[:budget], END, *JSON], json=SCHEMA) is True
    assert fits(compiler, thinking, [*thoughts[:budget], END, *b"~"], json=SCHEMA) == budget + 1
    assert fits(compiler, {"budget": budget}, [THINK, *thoughts]) == budget + 1
    assert fits(compiler, {"budget": budget}, thoughts) is True


def test_fewer_thoughts_than_the_budget(compiler: Compiler) -> None:
    assert fits(compiler, {"opened": True, "budget": 9}, [*b"hm", END, *b"so"]) is True


def test_what_leads_to_the_form(compiler: Compiler) -> None:
    thinking = {"starts": ("<|channel|>analysis",), "ends": ("</think>",), "lead": "<|channel|>final"}
    tokens = [CHANNEL, *b"analysis hm", END, CHANNEL, *b"final", *JSON]
    assert fits(compiler, thinking, tokens, json=SCHEMA) is True
    assert fits(compiler, thinking, tokens[-len(JSON) - 6 :], json=SCHEMA) is True


def test_a_mark_that_no_token_is_cannot_be_forced(compiler: Compiler) -> None:
    with pytest.raises(RequestError, match="not one token") as caught:
        fits(compiler, {"ends": ("So:",), "opened": True, "budget": 3}, [])
    assert caught.value.param == "thinking_token_budget"


@pytest.mark.parametrize(
    "wrong", [{"starts": ()}, {"ends": ("",)}, {"starts": ("x" * 2000,)}, {"budget": -1}, {"lead": "\0"}]
)
def test_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="thinking"):
        Thinking(**{"starts": ("a",), "ends": ("b",), **wrong})


def test_requests_cannot_set_it() -> None:
    with pytest.raises(RequestError, match="unknown field 'thinking'"):
        StructuredOutputsParams.from_mapping({"json": {}, "thinking": {}})
