"""Token ids in and out, rendering, and scores of labels."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.serving.fakes import Running, events

GENERATE = "/inference/v1/generate"


def error(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["param"]


def test_a_rendered_chat_generates_what_the_chat_does(server: Running) -> None:
    body = {"max_tokens": 3, "logit_bias": {"5": 1.0}, "seed": 4, "cache_salt": "s"}
    messages = [{"role": "user", "content": "abc"}]
    rendered = server.post("/v1/chat/completions/render", messages=messages, **body).json()
    assert bytes(rendered["token_ids"]) == b"abc>"
    assert rendered["sampling_params"] == {"max_tokens": 3, "logit_bias": {"5": 1.0}, "seed": 4}
    answer = server.post(GENERATE, **rendered).json()
    assert bytes(answer["choices"][0]["token_ids"]) == b"bcd"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3
    many = server.post("/v1/completions/render", prompt=["ab", "xy"], max_tokens=2).json()
    assert [bytes(one["token_ids"]) for one in many] == [b"ab", b"xy"]
    assert server.post(GENERATE, **many[1]).json()["choices"][0]["token_ids"] == list(b"yz")


def test_generate_streams(server: Running) -> None:
    params = {"max_tokens": 4, "logprobs": 1}
    chunks = events(server.post(GENERATE, token_ids=[97], sampling_params=params, stream=True))
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == [98] * 4
    first = chunks[0]["choices"][0]["logprobs"][0]
    assert (first["token_id"], first["logprob"], first["top_logprobs"][0]["token_id"]) == (98, -0.5, 98)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"wombat": 1}, "sampling_params.wombat"),
        ({"ignore_eos": "yes"}, "sampling_params"),
        ({"temperature": "hot"}, "sampling_params"),
        ({"temperature": 9}, "sampling_params.temperature"),
        ({"stop": ["a"]}, "sampling_params.stop"),
        ({"logit_bias": {"x": 1}}, "sampling_params"),
        ({"repetition_detection": {"min_count": 0}}, "sampling_params.repetition_detection.min_count"),
        ({"extra_args": {"a": 10**30}}, "sampling_params.extra_args"),
        ({"max_tokens": 900}, "max_tokens"),
    ],
)
def test_bad_parameters(server: Running, params: dict[str, Any], param: str) -> None:
    assert error(server.post(GENERATE, token_ids=[97], sampling_params=params)) == (400, param)
    assert server.post(GENERATE, token_ids=[97], sampling_params={"max_tokens": 1}).status_code == 200


def test_bad_tokens(server: Running) -> None:
    assert error(server.post(GENERATE, token_ids=[])) == (400, "prompt")
    assert error(server.post(GENERATE, token_ids=[999])) == (400, "prompt_token_ids")
    assert error(server.post(GENERATE, token_ids=[97], features={})) == (400, "features")
    response = server.post("/v1/completions", prompt="a", vllm_xargs={"a": 10**30})
    assert error(response) == (400, "vllm_xargs")


@pytest.mark.parametrize("ids", [False, True])
def test_scores_of_labels(server: Running, ids: bool) -> None:
    body: dict[str, Any] = {"query": "ab", "items": ["c", "d"], "label_token_ids": [120, 121]}
    if ids:
        body |= {"query": list(b"ab"), "items": [list(b"c"), list(b"d")]}
    answer = server.post("/generative_scoring", **body).json()
    assert answer["id"].startswith("generative-scoring-")
    assert [one["index"] for one in answer["data"]] == [0, 1]
    assert answer["data"][0]["score"] == pytest.approx(1 / (1 + math.exp(-1)))  # the fake: -1 and -2
    assert answer["usage"]["prompt_tokens"] == 6
    plain = server.post("/generative_scoring", **body, apply_softmax=False).json()["data"][0]
    assert plain["label_probabilities"] == pytest.approx([math.exp(-1), math.exp(-2)])
    for bad, param in (({"items": []}, "body.items"), ({"label_token_ids": [999]}, "logprob_token_ids")):
        status, found = error(server.post("/generative_scoring", **{**body, **bad}))
        assert status == 400
        assert found.startswith(param)
    mixed = {**body, "items": ["c"] if ids else [[1]]}
    assert error(server.post("/generative_scoring", **mixed)) == (400, "items.0")
