"""`/v1/responses` as OpenAI's own client sees it."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from tests.serving.fakes import Running
from vjax.serving.errors import ApiError
from vjax.serving.responses_api import _finish
from vjax.serving.responses_input import ResponsesRequest, to_chat, to_messages
from vjax.serving.responses_output import Reply
from vjax.serving.responses_store import ResponseStore, Stored

PATH = "/v1/responses"
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}


def openai_client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def client(server: Running) -> openai.OpenAI:
    return openai_client(server)


@pytest.fixture
def keeper(full_server: Running) -> openai.OpenAI:
    return openai_client(full_server)


def test_an_answer(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="fake", input="abc", max_output_tokens=3, instructions="<")
    assert answer.output_text == "=bc"
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (5, 3, 8)
    stopped = client.responses.create(model="fake", input="abc", extra_body={"stop": ["d"]})
    assert (stopped.status, stopped.output_text) == ("completed", "bc")
    bounded = client.responses.create(model="fake", input="abc", max_output_tokens=9999)
    assert bounded.usage is not None
    assert bounded.usage.total_tokens == 200


def test_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(model="fake", input="abc", extra_body={"stop": ["?"]}) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == "bcd"
    assert [event.type for event in events[:4]] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert [event.type for event in events[-4:]] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    raw = list(client.responses.create(model="fake", input="abc", max_output_tokens=2, stream=True))
    assert [event.sequence_number for event in raw] == list(range(len(raw)))
    assert raw[-1].type == "response.incomplete"


def test_logprobs_when_included(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model="fake", input="abc", max_output_tokens=1, include=["message.output_text.logprobs"], top_logprobs=2
    )
    content: Any = answer.output[0].content[0]  # type: ignore[union-attr,index]
    assert content.logprobs[0].token == "b"
    assert len(content.logprobs[0].top_logprobs) == 2


def test_items_become_messages() -> None:
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": "be"},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
        CALL,
        {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
    ]
    system, user, assistant, result = to_messages(items)
    assert (system["role"], user["role"]) == ("system", "user")
    assert assistant["reasoning"] == "hm"
    assert [call["id"] for call in assistant["tool_calls"]] == ["c1", "c2"]
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "1"}
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    body = ResponsesRequest(input=items, instructions="first", tools=[tool], reasoning={"effort": "low"})
    chat = to_chat(body, to_messages(items), stream=False)
    assert chat.messages[0] == {"role": "system", "content": "first\n\nbe"}
    assert chat.tools is not None
    assert chat.tools[0]["function"]["name"] == "f"
    assert chat.reasoning_effort == "low"


def test_parsed_chat_answers_become_items() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    choice = {
        "message": {"reasoning": "hm", "content": "so", "tool_calls": [call, call]},
        "finish_reason": "tool_calls",
    }
    reply = Reply(ResponsesRequest(input="a"), "m", False)
    _finish(reply, {"choices": [choice], "usage": None})
    found = Response.model_validate(reply.response)
    assert [item.type for item in found.output] == ["reasoning", "message", "function_call", "function_call"]
    assert found.status == "completed"
    adapter = openai._models.construct_type
    reply = Reply(ResponsesRequest(input="a"), "m", False)
    events = reply.start() + reply.take("reasoning", "hm")
    events += reply.take("tool", {"index": 0, "id": "c1", "name": "f", "arguments": '{"a"'})
    events += reply.take("tool", {"index": 0, "id": None, "name": None, "arguments": ":1}"}) + reply.end({}, None)
    for event in events:
        assert adapter(type_=ResponseStreamEvent, value=event).type == event["type"]  # type: ignore[attr-defined]
    (done,) = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert (done["arguments"], done["output_index"]) == ('{"a":1}', 1)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input.0"),
        ({"input": [{"type": ["a"]}]}, "input.0"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": 3, "content": "a"}]}, "input.0.role"),
        ({"input": [{**CALL, "arguments": 3}]}, "input.0.arguments"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "input.0.call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"prompt": {"id": "a"}}, "prompt"),
        ({"conversation": "a"}, "conversation"),
        ({"truncation": "some"}, "truncation"),
        ({"text": {"format": 3}}, "text.format"),
        ({"temperature": 9}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"background": True}, "background"),
        ({"input": "x" * 300}, "input_tokens"),
    ],
)
def test_bad_requests(server: Running, body: dict[str, Any], param: str) -> None:
    response = server.post(PATH, **{"input": "a", **body})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_nothing_is_kept_by_default(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="fake", input="a", max_output_tokens=1)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="fake", input="a", previous_response_id=answer.id)


def test_a_conversation_that_is_kept(keeper: openai.OpenAI) -> None:
    first = keeper.responses.create(model="fake", input="abc", max_output_tokens=2, instructions="x")
    assert keeper.responses.retrieve(first.id).output_text == first.output_text == "yb"
    second = keeper.responses.create(
        model="fake", input="z", max_output_tokens=99, previous_response_id=first.id, extra_body={"stop": "?"}
    )
    assert second.output_text == "bcdzc{"  # abc, yb and z again, each one further; the instructions are not kept
    with keeper.responses.stream(
        model="fake", input="w", previous_response_id=second.id, extra_body={"stop": "?"}
    ) as stream:
        third = stream.get_final_response()
    assert third.output_text == "bcdzc{cde{d|x"
    assert keeper.responses.retrieve(third.id).output_text == third.output_text
    keeper.responses.delete(third.id)
    with pytest.raises(openai.NotFoundError):
        keeper.responses.retrieve(third.id)
    unkept = keeper.responses.create(model="fake", input="a", max_output_tokens=1, store=False)
    with pytest.raises(openai.NotFoundError):
        keeper.responses.retrieve(unkept.id)


def test_in_the_background(keeper: openai.OpenAI) -> None:
    queued = keeper.responses.create(model="fake", input="abc", max_output_tokens=3, background=True)
    assert queued.status in ("queued", "in_progress")
    deadline = time.monotonic() + 10
    while (answer := keeper.responses.retrieve(queued.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert answer.output_text == "bcd"
    assert keeper.responses.cancel(queued.id).status == "incomplete"  # too late
    events = list(keeper.responses.create(model="fake", input="abc", max_output_tokens=2, background=True, stream=True))
    again = list(keeper.responses.retrieve(events[0].response.id, stream=True, starting_after=3))  # type: ignore[union-attr]
    assert [event.sequence_number for event in again] == list(range(4, len(events)))
    plain = keeper.responses.create(model="fake", input="a", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError):
        keeper.responses.cancel(plain.id)


def test_the_store_is_bounded() -> None:
    store = ResponseStore(3000)
    kept = []
    for _ in range(4):
        reply = Reply(ResponsesRequest(input="a"), "m", True)
        reply.end({"finish_reason": "stop"}, None)
        kept.append(Stored(reply, [{"role": "user", "content": "a" * 100}]))
        store.add(kept[-1])
        assert 0 < store.size <= 3000
    with pytest.raises(ApiError):
        store.get(kept[0].reply.id)
    assert store.get(kept[-1].reply.id) is kept[-1]
    with pytest.raises(ApiError) as caught:
        store.add(Stored(Reply(ResponsesRequest(input="a"), "m", True), [{"content": "a" * 5000}]))
    assert caught.value.status == 503
    assert store.size == 0 or store.get(kept[-1].reply.id)
