"""`/v1/messages` as Anthropic's own client sees it."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from tests.serving.fakes import Running
from vjax.serving.messages import _Blocks, _message
from vjax.serving.messages_input import MessagesRequest, to_chat

PATH = "/v1/messages"


@pytest.fixture
def client(server: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def ask(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="fake", max_tokens=3, messages=ask("abc"))
    (block,) = message.content
    assert block.type == "text"
    assert block.text == "bcd"
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "max_tokens", None)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (4, 3)
    assert message.id.startswith("msg-")


def test_max_tokens_is_a_bound(client: anthropic.Anthropic) -> None:
    assert client.messages.create(model="fake", max_tokens=5000, messages=ask("abc")).usage.output_tokens == 196


def test_stream(client: anthropic.Anthropic) -> None:
    kinds = []
    with client.messages.stream(model="fake", max_tokens=3, messages=ask("abc")) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert message.content[0].type == "text"
    assert message.content[0].text == "bcd"
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("max_tokens", 4, 3)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequences(client: anthropic.Anthropic, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "fake", "max_tokens": 9, "messages": ask("abc"), "stop_sequences": ["d?"]}
    if stream:
        with client.messages.stream(**asked) as one:
            message = one.get_final_message()
    else:
        message = client.messages.create(**asked)
    assert message.content[0].type == "text"
    assert message.content[0].text == "bc"
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "d?")


def test_count_tokens_with_system_blocks(client: anthropic.Anthropic) -> None:
    system: Any = [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}]
    assert client.messages.count_tokens(model="fake", system=system, messages=ask("abc")).input_tokens == 6
    assert client.messages.count_tokens(model="fake", messages=ask("abc")).input_tokens == 4


def test_errors(server: Running, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nobody", max_tokens=3, messages=ask("abc"))
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model="fake", max_tokens=3, messages=ask("abc"), extra_body={"temperature": 9})
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert "temperature" in body["error"]["message"]
    for bad in ({}, {"max_tokens": 0, "messages": ask("a")}, {"max_tokens": 1, "messages": []}):
        response = server.post(PATH, **bad)
        assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    with (
        pytest.raises(anthropic.APIStatusError) as failed,
        client.messages.stream(
            model="fake", max_tokens=9, messages=ask("!fail"), system="", extra_body={"chat_template_kwargs": {}}
        ) as stream,
    ):
        stream.until_done()
    assert "no luck" in str(failed.value)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": ["a"]}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "text"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}, "name"),
        ({"system": 3}, "system"),
        ({"system": [{"type": "image"}]}, "system"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"name": "f"}], "tool_choice": {"type": "some"}}, "tool_choice"),
        ({"stop_sequences": [""]}, "stop"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config"),
        ({"output_config": {"effort": 3}}, "reasoning_effort"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "context"),
    ],
)
def test_bad_requests(server: Running, body: dict[str, Any], param: str) -> None:
    response = server.post(PATH, **{"max_tokens": 1, "messages": ask("a"), **body})
    assert response.status_code == 400, response.text
    assert response.json()["type"] == "error"
    assert param in response.json()["error"]["message"]


def test_history_with_tools_becomes_a_chat() -> None:
    body = MessagesRequest(
        max_tokens=5,
        system=[{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}],
        messages=[
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "Rome"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sun"}]},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
        tools=[{"name": "look", "input_schema": {"properties": {"at": {"type": "string"}}}}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        thinking={"type": "disabled"},
    )
    chat = to_chat(body)
    system, user, assistant, result, more = chat.messages
    assert (system["content"], user["content"]) == ("be\nkind", "weather?")
    assert (assistant["content"], assistant["reasoning"]) == ("I look.", "hm")
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"at": "Rome"}
    assert result == {"role": "tool", "tool_call_id": "t1", "content": "sun"}
    assert more == {"role": "user", "content": [{"type": "text", "text": "and?"}]}
    assert chat.tools is not None
    assert chat.tools[0]["function"]["parameters"]["type"] == "object"
    assert chat.chat_template_kwargs == {"enable_thinking": False}


def test_parsed_chat_answers_become_blocks() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"reasoning": "hm", "content": "so", "tool_calls": [call]}
    answer = {
        "id": "msg-1", "model": "m", "usage": {"prompt_tokens": 5, "completion_tokens": 2},
        "choices": [{"message": message, "finish_reason": "tool_calls", "stop_reason": None}],
    }  # fmt: skip
    found = anthropic.types.Message.model_validate(_message(answer))
    assert [block.type for block in found.content] == ["thinking", "text", "tool_use"]
    assert found.stop_reason == "tool_use"
    blocks = _Blocks()
    events = blocks.take("reasoning", "hm") + blocks.take("text", {"delta": {"content": "so"}})
    for part in ({"id": "c1", "name": "f", "arguments": ""}, {"id": None, "name": None, "arguments": "{}"}):
        events += blocks.take("tool", {"index": 0, **part})
    events += blocks.take("tool", {"index": 1, "id": "c2", "name": "g", "arguments": "{}"}) + blocks.close()
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use", "tool_use"]
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2, 3]
