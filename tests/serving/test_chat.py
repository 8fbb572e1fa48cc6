"""Chat completions: what clients get, plain and streamed."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.serving.fakes import Running, events, running


@pytest.fixture
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_an_answer(server: Running) -> None:
    answer = server.chat("abc", max_tokens=3).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "fake"
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == "bcd"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)
    assert answer["usage"] == {
        "prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7, "prompt_tokens_details": None
    }  # fmt: skip


def test_without_a_limit_the_context_is_the_limit(server: Running) -> None:
    usage = server.chat("abc").json()["usage"]
    assert usage["total_tokens"] == 200


def test_max_completion_tokens_beats_max_tokens(server: Running) -> None:
    assert server.chat("abc", max_tokens=9, max_completion_tokens=2).json()["usage"]["completion_tokens"] == 2


def test_openai_client_streams(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="fake", messages=ask("abc"), max_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "bcd"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    assert len({c.id for c in chunks}) == 1
    assert all(c.usage is None for c in chunks[:-1])


def test_continuous_usage_grows(server: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(server.chat("abc", max_tokens=3, stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 3
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {4}


def test_n_answers(server: Running) -> None:
    answer = server.chat("abc", max_tokens=2, n=3).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 6
    chunks = events(server.chat("abc", max_tokens=2, n=3, stream=True))
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"]["content"]
    assert texts == {0: "bc", 1: "bc", 2: "bc"}


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=ask("abc"), max_tokens=2, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    first = logprobs.content[0]
    assert (first.token, first.logprob, first.bytes) == ("b", -0.5, [98])
    assert [(top.token, top.logprob) for top in first.top_logprobs] == [("c", -0.25), ("b", -0.5)]


def test_logprobs_in_a_stream_cover_every_token(server: Running) -> None:
    chunks = events(server.chat("abc", max_tokens=4, logprobs=True, top_logprobs=1, stream=True))
    content = [entry for chunk in chunks for entry in ((chunk["choices"][0]["logprobs"] or {}).get("content") or [])]
    assert [entry["token"] for entry in content] == ["b", "c", "d", "?"]
    assert [len(entry["top_logprobs"]) for entry in content] == [1] * 4


def test_tokens_as_ids(server: Running) -> None:
    answer = server.chat(
        "abc", max_tokens=1, logprobs=True, return_tokens_as_token_ids=True, return_token_ids=True
    ).json()
    assert answer["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:98"
    assert answer["choices"][0]["token_ids"] == [98]
    assert answer["prompt_token_ids"] == list(b"abc>")


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(server: Running, stream: bool) -> None:
    response = server.chat("abc", stop=["d?"], stream=stream)
    choices = [c["choices"][0] for c in events(response)] if stream else response.json()["choices"]
    assert "".join(c.get("delta", c.get("message"))["content"] for c in choices) == "bc"
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "d?")


def test_stop_token_ids(server: Running) -> None:
    (choice,) = server.chat("abc", stop_token_ids=[100]).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("bc", "stop", 100)


def test_prompt_logprobs(server: Running) -> None:
    rows = server.chat("ab", max_tokens=1, prompt_logprobs=1).json()["prompt_logprobs"]
    assert rows[0] is None
    assert rows[1]["98"] == {"logprob": -0.5, "rank": 2, "decoded_token": "b"}


def test_content_parts_are_joined(server: Running) -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    answer = server.post("/v1/chat/completions", messages=[{"role": "user", "content": parts}], max_tokens=4).json()
    assert answer["choices"][0]["message"]["content"] == "bc\x0bd"


def test_continue_final_message(server: Running) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]
    body = {"messages": messages, "max_tokens": 3, "continue_final_message": True, "add_generation_prompt": False}
    answer = server.post("/v1/chat/completions", **body).json()
    assert answer["choices"][0]["message"] == {
        "role": "assistant", "content": "bcd", "refusal": None, "tool_calls": []
    }  # fmt: skip
    echoed = server.post("/v1/chat/completions", **body, echo=True).json()
    assert echoed["choices"][0]["message"]["content"] == "bcbcd"


def test_templates_see_tools_documents_and_variables() -> None:
    template = (
        "{{ tools[0].function.name }}{{ documents[0].text }}{{ word }}"
        "{{ messages[1].tool_calls[0].function.arguments.x }}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": "z"})}}
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}],
        "tools": [{"type": "function", "function": {"name": "tool"}}],
        "documents": [{"text": "doc"}],
        "chat_template_kwargs": {"word": "W"},
        "max_tokens": 1,
        "return_token_ids": True,
    }
    flags = ("--tool-call-parser", "hermes", "--enable-auto-tool-choice")
    with running("--chat-template", template, "--response-role", "bot", *flags) as server:
        answer = server.post("/v1/chat/completions", **body).json()
        assert bytes(answer["prompt_token_ids"]) == b"tooldocWz"
        assert answer["choices"][0]["message"]["role"] == "bot"


def test_defaults_of_the_model() -> None:
    config = json.dumps({"max_new_tokens": 5, "temperature": 0.0})
    with running(FAKE_GENERATION_CONFIG=config) as server:
        assert server.chat("abc").json()["usage"]["completion_tokens"] == 5
        assert server.chat("x" * 197).json()["usage"]["total_tokens"] == 200
        assert server.chat("abc", n=2).status_code == 400  # greedy by default
    with running("--generation-config", "vllm", FAKE_GENERATION_CONFIG=config) as server:
        assert server.chat("abc", n=2, max_tokens=1).status_code == 200


def test_async_answers_do_not_mix(server: Running) -> None:
    import asyncio

    async def many() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(model="fake", messages=ask(letter), max_tokens=1)
                    for letter in "abcdefghij"
                )
            )
        return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(many()) == list("bcdefghijk")
