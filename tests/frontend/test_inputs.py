from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.frontend.fakes import EOS, LIMITS, byte_tokenizer
from vjax.errors import RequestError
from vjax.frontend.inputs import InputProcessor
from vjax.sampling_params import SamplingParams

TOKENIZER = byte_tokenizer()
LOOSE = InputProcessor(TOKENIZER, LIMITS)
STRICT = InputProcessor(TOKENIZER, LIMITS, strict_length=True)
WITHOUT = InputProcessor(None, LIMITS)


@pytest.mark.parametrize(
    "prompt", ["abc", {"prompt": "abc"}, [97, 98, 99], {"prompt_token_ids": [97, 98, 99]}, np.array([97, 98, 99])]
)
def test_every_form_of_a_prompt(prompt: Any) -> None:
    request = LOOSE.process("r", prompt, SamplingParams())
    assert request.prompt_token_ids == [97, 98, 99]
    assert all(type(token) is int for token in request.prompt_token_ids)
    [child] = request.children
    assert (child.request_id, child.prompt_token_ids, child.eos_token_ids) == ("r", [97, 98, 99], [EOS])


def test_ids_win_over_text_which_is_shown() -> None:
    request = LOOSE.process("r", {"prompt": "shown", "prompt_token_ids": [1]}, SamplingParams())
    assert (request.prompt, request.prompt_token_ids) == ("shown", [1])
    assert LOOSE.process("r", [1], SamplingParams(), prompt_text="also").prompt == "also"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ({}, "prompt"),
        ({"prompt": b"abc"}, "prompt"),
        ({"prompt": "a", "image": 1}, "prompt"),
        (7, "prompt"),
        (b"abc", "prompt"),
        ("a\ud800b", "prompt"),
        ([300], "prompt_token_ids"),
        ([-1], "prompt_token_ids"),
        ([1.0], "prompt_token_ids"),
        ([True], "prompt_token_ids"),
        (["a"], "prompt_token_ids"),
        ([None], "prompt_token_ids"),
        (np.array([[1, 2]]), "prompt_token_ids"),
        ("a" * 64, "input_tokens"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt"),
        ({"prompt": "a", "cache_salt": 3}, "cache_salt"),
    ],
)
def test_bad_prompts(prompt: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        LOOSE.process("r", prompt, SamplingParams())
    assert caught.value.param == param
    assert "\n" not in str(caught.value)


def test_without_a_tokenizer() -> None:
    assert WITHOUT.process("r", [1], SamplingParams()).prompt is None
    for prompt, params, param in (
        ("text", SamplingParams(), "prompt"),
        ([1], SamplingParams(stop="x"), "stop"),
        ([1], SamplingParams(bad_words=["x"]), "bad_words"),
    ):
        with pytest.raises(RequestError) as caught:
            WITHOUT.process("r", prompt, params)
        assert caught.value.param == param


@pytest.mark.parametrize(("max_tokens", "expected"), [(None, 61), (61, 61), (62, 61), (9999, 61), (5, 5)])
def test_offline_output_is_cut_at_the_context(max_tokens: int | None, expected: int) -> None:
    assert LOOSE.process("r", "abc", SamplingParams(max_tokens=max_tokens)).params.max_tokens == expected


@pytest.mark.parametrize(("max_tokens", "param"), [(62, "input_tokens"), (65, "max_tokens")])
def test_the_server_refuses_output_without_room(max_tokens: int, param: str) -> None:
    assert STRICT.process("r", "abc", SamplingParams(max_tokens=61)).params.max_tokens == 61
    with pytest.raises(RequestError) as caught:
        STRICT.process("r", "abc", SamplingParams(max_tokens=max_tokens))
    assert caught.value.param == param


def test_the_length_error_names_all_three_numbers() -> None:
    with pytest.raises(RequestError, match=r"context is 64 tokens.*\b70 in the prompt and 9 for the output"):
        LOOSE.process("r", [1] * 70, SamplingParams(max_tokens=9))


def test_huge_text_is_refused_before_it_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_tokenizer()
    processor = InputProcessor(tokenizer, LIMITS)
    monkeypatch.setattr(tokenizer, "encode", lambda *_, **__: pytest.fail("tokenised"))
    with pytest.raises(RequestError) as caught:
        processor.process("r", "a" * (64 * tokenizer.max_token_length + 1), SamplingParams())
    assert caught.value.param == "input_text"


def test_truncation_keeps_the_end() -> None:
    def left(keep: int, text: str = "x" * 9000 + "abcdef") -> int | str:
        params = SamplingParams(max_tokens=4, truncate_prompt_tokens=keep)
        return bytes(STRICT.process("r", text, params).prompt_token_ids).decode()

    assert left(3) == "def"
    assert left(3, "ab") == "ab"
    assert left(-1) == "x" * 54 + "abcdef"
    with pytest.raises(RequestError) as caught:
        left(61)
    assert caught.value.param == "truncate_prompt_tokens"


def test_children_are_seeded_apart_and_only_one_scores_the_prompt() -> None:
    request = LOOSE.process("r", "ab", SamplingParams(n=3, seed=2**63 - 1, prompt_logprobs=1), priority=-2)
    assert [child.request_id for child in request.children] == ["r_0", "r_1", "r_2"]
    assert [child.params.seed for child in request.children] == [2**63 - 1, -(2**63), -(2**63) + 1]
    assert [child.params.prompt_logprobs for child in request.children] == [1, None, None]
    assert {child.params.n for child in request.children} == {1}
    assert {child.priority for child in request.children} == {-2}
    unseeded = LOOSE.process("r", "ab", SamplingParams(n=2))
    assert [child.params.seed for child in unseeded.children] == [None, None]


def test_bad_words_with_and_without_a_space() -> None:
    class Words:
        """One id a word; a space before it gives another one."""

        eos_token_ids = ()

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            assert not add_special_tokens or text == "p"
            ids = {"p": [9], "cat": [1], " cat": [2], "two words": [3, 4], " two words": [5, 6, 4], "ж": [7], " ж": [7]}
            return ids[text]

    processor = InputProcessor(Words(), LIMITS)  # type: ignore[arg-type]
    request = processor.process("r", "p", SamplingParams(bad_words=[" cat", "two words", "ж"]))
    assert request.children[0].bad_word_ids == [[1], [2], [3, 4], [7]]


def test_what_depends_on_the_engine() -> None:
    for params, param in (
        (SamplingParams(logprobs=6), "logprobs"),
        (SamplingParams(prompt_logprobs=-1), "prompt_logprobs"),
        (SamplingParams(stop_token_ids=[300]), "stop_token_ids"),
        (SamplingParams(logit_bias={300: 1}), "logit_bias"),
    ):
        with pytest.raises(RequestError) as caught:
            LOOSE.process("r", "a", params)
        assert caught.value.param == param
    with pytest.raises(RequestError, match="priority"):
        LOOSE.process("r", "a", SamplingParams(), priority=2**31)


def test_grammars_are_compiled_before_a_request_starts() -> None:
    params = SamplingParams(structured_outputs={"json": {"type": "object"}})
    assert LOOSE.process("r", "p", params).children[0].params.structured_outputs == params.structured_outputs
    with pytest.raises(RequestError, match="without one") as caught:
        WITHOUT.process("r", [1], params)
    assert caught.value.param == "structured_outputs"
    with pytest.raises(RequestError, match=r"cannot be used: .*unclosed group") as caught:
        LOOSE.process("r", "p", SamplingParams(structured_outputs={"regex": "("}))
    assert caught.value.param == "structured_outputs.regex"


def test_a_grammar_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    processor, compiling = InputProcessor(TOKENIZER, LIMITS), threading.Event()
    monkeypatch.setattr("vjax.frontend.grammars.SECONDS", 0.05)
    monkeypatch.setattr("vjax.engine.grammar.Compiler._source", lambda *_: compiling.wait(10) and "start: /a/")
    spec = SamplingParams(structured_outputs={"regex": "a"})
    with pytest.raises(RequestError, match="takes more than") as caught:
        processor.process("r", "p", spec)
    assert caught.value.param == "structured_outputs.regex"
    processor.process("r", "p", SamplingParams())  # stands in nobody's way
    compiling.set()


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vjax.frontend.grammars.find_spec", lambda _: None)
    with pytest.raises(RequestError, match=r"vjax\[structured\]"):
        InputProcessor(TOKENIZER, LIMITS).process("r", "p", SamplingParams(structured_outputs={"regex": "a"}))
