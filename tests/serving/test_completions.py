"""Text completions, tokenization."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.serving.fakes import Running, events


def complete(server: Running, prompt: Any, **body: Any) -> dict[str, Any]:
    response = server.post("/v1/completions", model="fake", prompt=prompt, **body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("prompt", ["abc", list(b"abc")])
def test_text_or_ids(server: Running, prompt: Any) -> None:
    answer = complete(server, prompt, max_tokens=3)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"][0]["text"] == "bcd"
    assert answer["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("prompts", [["ab", "xy"], [list(b"ab"), list(b"xy")]])
def test_many_prompts(server: Running, prompts: Any) -> None:
    answer = complete(server, prompts, max_tokens=1, n=2)
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "b"), (1, "b"), (2, "y"), (3, "y")]
    assert answer["usage"] == {
        "prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8, "prompt_tokens_details": None
    }  # fmt: skip


def test_sixteen_tokens_by_default(server: Running) -> None:
    assert complete(server, "abc")["usage"]["completion_tokens"] == 16
    assert complete(server, "x" * 195)["usage"]["completion_tokens"] == 5


def test_streamed_prompts_end_with_usage(server: Running) -> None:
    response = server.post(
        "/v1/completions", prompt=["ab", "xy"], max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    chunks = events(response)
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["bcbc", "yzyz"]
    assert chunks[-1]["usage"]["total_tokens"] == 12


def test_openai_client(server: Running) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    answer = client.completions.create(model="other", prompt="abc", max_tokens=2, logprobs=1, echo=True)
    assert answer.model == "other"
    assert answer.choices[0].text == "abcbc"
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b", "c", "b", "c"]
    assert logprobs.text_offset == [0, 1, 2, 3, 4]
    assert logprobs.token_logprobs == [None, -0.5, -0.5, -0.5, -0.5]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[1] == {"b": -0.5, "c": -0.25}


def test_streamed_logprobs_have_offsets_into_the_whole_text(server: Running) -> None:
    response = server.post("/v1/completions", prompt="abc", max_tokens=3, logprobs=0, echo=True, stream=True)
    choices = [chunk["choices"][0] for chunk in events(response)]
    assert "".join(choice["text"] for choice in choices) == "abcbcd"
    assert [token for choice in choices for token in choice["logprobs"]["tokens"]] == list("abcbcd")
    assert [offset for choice in choices for offset in choice["logprobs"]["text_offset"]] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_without_tokens_scores_the_prompt_only(server: Running, stream: bool) -> None:
    body: dict[str, Any] = {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 1}
    if stream:
        chunks = events(
            server.post("/v1/completions", **body, stream=True, stream_options={"include_usage": True})
        )  # fmt: skip
        text, usage = "".join(c["choices"][0]["text"] for c in chunks[:-1]), chunks[-1]["usage"]
    else:
        answer = complete(server, **body)
        text, usage = answer["choices"][0]["text"], answer["usage"]
        assert answer["choices"][0]["logprobs"]["tokens"] == ["a", "b", "c"]
    assert text == "abc"
    assert usage["completion_tokens"] == 0


def test_ids_are_echoed_as_text(server: Running) -> None:
    assert complete(server, list(b"abc"), max_tokens=1, echo=True)["choices"][0]["text"] == "abcb"


def test_unknown_fields_are_ignored(server: Running) -> None:
    assert complete(server, "abc", max_tokens=1, wombat={"a": 1}, user="me")["choices"][0]["text"] == "b"


def test_sampling_fields_reach_the_engine(server: Running) -> None:
    body = dict(
        temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, seed=3, presence_penalty=1, frequency_penalty=1,
        repetition_penalty=1.1, min_tokens=1, ignore_eos=True, logit_bias={"3": 1.5}, allowed_token_ids=[1],
        bad_words=["no"], skip_special_tokens=False, spaces_between_special_tokens=False, cache_salt="s", priority=1,
        include_stop_str_in_output=True, stop="c", truncate_prompt_tokens=2, return_token_ids=True,
    )  # fmt: skip
    (choice,) = complete(server, "xxab", max_tokens=9, **body)["choices"]
    assert choice["prompt_token_ids"] == list(b"ab")
    assert choice["text"] == "bc"


def test_tokenize_and_back(server: Running) -> None:
    answer = server.post("/tokenize", prompt="ab", return_token_strs=True).json()
    assert answer == {"count": 2, "max_model_len": 200, "tokens": [97, 98], "token_strs": ["a", "b"]}
    assert server.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": "ab"}
    chat = server.post("/tokenize", messages=[{"role": "user", "content": "ab"}]).json()
    assert bytes(chat["tokens"]) == b"ab>"


@pytest.mark.parametrize("tokens", [[-1], [257], [2**40]])
def test_detokenize_refuses_other_ids(server: Running, tokens: list[int]) -> None:
    assert server.post("/detokenize", tokens=tokens).status_code == 400
