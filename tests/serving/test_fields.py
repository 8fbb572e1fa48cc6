"""Request fields beyond OpenAI's, and what answers tell beside their text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving.fakes import Running, events

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def error(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["param"]


def test_best_of_counts_all_and_shows_the_best(server: Running) -> None:
    answer = server.post(TEXT, prompt="abc", max_tokens=2, n=2, best_of=4).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 8
    for body in ({"n": 3, "best_of": 2}, {"best_of": 3, "stream": True}, {"best_of": 2, "use_beam_search": True}):
        assert error(server.post(TEXT, prompt="abc", **body)) == (400, "best_of")


@pytest.mark.parametrize("stream", [False, True])
def test_beam_search(server: Running, stream: bool) -> None:
    body = {"n": 2, "use_beam_search": True, "max_tokens": 3, "temperature": 0, "stream": stream, "top_p": 0.5}
    response = server.post(TEXT, prompt="abc", **body, logprobs=1)
    answers = events(response) if stream else [response.json()]
    choices = [choice for answer in answers for choice in answer["choices"]]
    assert [choice["index"] for choice in choices] == [0, 1]
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in choices]
    assert sums == [-0.75, -1.0]  # the fake's likeliest token has -0.25, the next -0.5
    assert [choice["finish_reason"] for choice in choices] == ["length", "length"]
    assert len(choices[0]["text"]) == 3
    chat = server.chat("abc", **body)
    texts = {}
    for answer in events(chat) if stream else [chat.json()]:
        for choice in answer["choices"]:
            said = choice.get("delta", choice.get("message"))["content"]
            texts[choice["index"]] = texts.get(choice["index"], "") + said
    assert [len(text) for text in texts.values()] == [3, 3]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 3}, "n"), ({"length_penalty": 99}, "length_penalty"), ({"stop": ["a"]}, "stop"),
        ({"logit_bias": {"3": 1}}, "logit_bias"), ({"repetition_penalty": 1.5}, "repetition_penalty"),
    ],
)  # fmt: skip
def test_what_beams_cannot_honour(server: Running, body: dict[str, Any], param: str) -> None:
    assert error(server.post(TEXT, prompt="abc", use_beam_search=True, **body)) == (400, param)


def test_logprobs_of_named_tokens(server: Running) -> None:
    (choice,) = server.post(TEXT, prompt="abc", max_tokens=1, logprob_token_ids=[120, 121]).json()["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"b": -0.5, "x": -1.0, "y": -2.0}]
    (choice,) = server.chat("abc", max_tokens=1, logprobs=True, logprob_token_ids=[120]).json()["choices"]
    assert [top["token"] for top in choice["logprobs"]["content"][0]["top_logprobs"]] == ["b", "x"]
    assert error(server.post(TEXT, prompt="a", logprob_token_ids=[999])) == (400, "logprob_token_ids")
    assert error(server.post(TEXT, prompt="a", logprob_token_ids=[1] * 129)) == (400, "logprob_token_ids")


def test_repetition_detection(server: Running) -> None:
    wanted = {"max_pattern_size": 2, "min_count": 3}
    (choice,) = server.post(TEXT, prompt="abc", repetition_detection=wanted).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
    for bad in ({"min_count": 1}, {"min_pattern_size": 3}, {"wombat": 1}, {"max_pattern_size": 4000, "min_count": 9}):
        status, param = error(server.post(TEXT, prompt="abc", repetition_detection=bad))
        assert (status, param.split(".")[0]) == (400, "repetition_detection")


def test_truncation_side(server: Running) -> None:
    body = {"max_tokens": 1, "truncate_prompt_tokens": 2, "return_token_ids": True}
    for side, kept in (("left", b"cd"), ("right", b"ab"), (None, b"cd")):
        (choice,) = server.post(TEXT, prompt="abcd", **body, truncation_side=side).json()["choices"]
        assert bytes(choice["prompt_token_ids"]) == kept
    assert error(server.post(TEXT, prompt="abcd", **body, truncation_side="up")) == (400, "truncation_side")


def test_stream_interval(server: Running) -> None:
    chunks = events(server.post(TEXT, prompt="abc", max_tokens=8, stream=True, stream_interval=3))
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == "bcdbcdbc"
    assert len(texts[0]) == 1
    assert all(len(text) >= 3 for text in texts[1:-1])


def test_extra_args_are_taken(server: Running) -> None:
    assert server.post(TEXT, prompt="a", max_tokens=1, vllm_xargs={"a": 1, "b": [1.5, "c"]}).status_code == 200


def test_a_template_of_ones_own(server: Running, full_server: Running) -> None:
    body = {"max_tokens": 1, "return_token_ids": True, "return_prompt_text": True}
    answer = full_server.chat("abc", chat_template="<{{ messages[0].content }}", **body).json()
    assert bytes(answer["prompt_token_ids"]) == b"<abc"
    assert answer["prompt_text"] == "<abc"
    assert error(server.chat("abc", chat_template="x", **body)) == (400, "chat_template")
    assert error(full_server.chat("abc", chat_template="{% if %}", **body)) == (400, "chat_template")


def test_batch_of_conversations(server: Running) -> None:
    messages = [[{"role": "user", "content": text}] for text in ("ab", "xy")]
    answer = server.post(f"{CHAT}/batch", messages=messages, max_tokens=2).json()
    assert [(c["index"], c["message"]["content"]) for c in answer["choices"]] == [(0, "bc"), (1, "yz")]
    assert answer["usage"]["total_tokens"] == 10
    for body in ({"n": 2}, {"stream": True}, {"use_beam_search": True}):
        assert error(server.post(f"{CHAT}/batch", messages=messages, **body)) == (400, next(iter(body)))
    assert error(server.post(f"{CHAT}/batch", messages=[*messages, []])) == (400, "messages.2")


def test_fingerprint_and_metrics(server: Running, full_server: Running) -> None:
    prints = {server.chat("a", max_tokens=1).json()["system_fingerprint"] for _ in range(2)}
    assert len(prints) == 1
    assert prints.pop().startswith("vjax-")
    for path, body in ((TEXT, {"prompt": "abc"}), (CHAT, {"messages": [{"role": "user", "content": "abc"}]})):
        answer = full_server.post(path, **body, max_tokens=3).json()
        assert answer["system_fingerprint"].startswith("fp_")
        assert answer["metrics"]["time_to_first_token_ms"] >= answer["metrics"]["queue_time_ms"] >= 0
        assert answer["metrics"]["tokens_per_second"] > 0
        for usage in (False, True):
            *chunks, last = events(
                full_server.post(path, **body, max_tokens=3, stream=True, stream_options={"include_usage": usage})
            )
            assert not any("metrics" in chunk or "system_fingerprint" in chunk for chunk in chunks)
            assert last["metrics"]["generation_time_ms"] >= 0
            assert last["system_fingerprint"] == answer["system_fingerprint"]


def test_tokenizer_info(server: Running, full_server: Running) -> None:
    info = full_server.http.get("/tokenizer_info").json()
    assert info["eos_token"] == "<eos>"
    assert "messages" in info["chat_template"]
    assert server.http.get("/tokenizer_info").json() == {"detail": "Not Found"}


def test_invocations(server: Running) -> None:
    assert server.post("/invocations", prompt="abc", max_tokens=1).json()["object"] == "text_completion"
    chat = server.post("/invocations", messages=[{"role": "user", "content": "a"}], max_tokens=1).json()
    assert chat["object"] == "chat.completion"
    assert error(server.post("/invocations", wombat=1)) == (400, "body")
    assert error(server.post("/invocations", prompt=3)) == (400, "body.prompt.str")
