"""Reasoning and tool calls as clients get them, of a model that says what it is told to."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.serving.fakes import EOS, Running, events

THOUGHTS = "<think>\nLet me é see.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "Paris", "n": 2}}\n</tool_call>'
OTHER = CALL.replace("Paris", "Rome")
LOOK = {
    "name": "look",
    "parameters": {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/place"}, "n": {"type": "integer"}},
        "$defs": {"place": {"type": "string"}},
    },
}
TOOLS: list[Any] = [{"type": "function", "function": LOOK}, {"type": "function", "function": {"name": "stop"}}]
NAMED = {"type": "function", "function": {"name": "look"}}


@pytest.fixture(scope="module")
def client(script_server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{script_server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def claude(script_server: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=script_server.url, api_key="none", max_retries=0)


def say(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_an_answer_taken_apart(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="fake", messages=say(THOUGHTS + "Yes.\n" + CALL + OTHER), tools=TOOLS)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Yes."
    assert choice.message.reasoning == "Let me é see."  # type: ignore[attr-defined]
    calls: list[Any] = list(choice.message.tool_calls or ())
    assert [(call.type, call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("function", "look", {"at": "Paris", "n": 2}), ("function", "look", {"at": "Rome", "n": 2})
    ]  # fmt: skip
    assert all(call.id.startswith("chatcmpl-tool-") for call in calls)
    assert len({call.id for call in calls}) == 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("\nLet me é see.\n".encode())


def test_a_stream_in_order(client: openai.OpenAI) -> None:
    text = THOUGHTS + "Yes." + CALL + OTHER
    stream = client.chat.completions.create(model="fake", messages=say(text), tools=TOOLS, stream=True)
    deltas = [(chunk.choices[0].delta, chunk.choices[0].finish_reason) for chunk in stream]
    assert (deltas[0][0].role, deltas[0][0].content) == ("assistant", "")
    kinds = [
        kind for delta, _ in deltas[1:] for kind in ("reasoning", "content", "tool_calls") if getattr(delta, kind, None)
    ]
    assert kinds == sorted(kinds, key=("reasoning", "content", "tool_calls").index)
    assert "".join(getattr(delta, "reasoning", None) or "" for delta, _ in deltas) == "Let me é see."
    assert "".join(delta.content or "" for delta, _ in deltas) == "Yes."
    calls = [delta.tool_calls for delta, _ in deltas if delta.tool_calls]
    assert all(len(call) == 1 for call in calls)
    for index in (0, 1):
        parts = [call[0] for call in calls if call[0].index == index]
        assert (parts[0].type, parts[0].function.name, bool(parts[0].id)) == ("function", "look", True)
        assert all(part.id is None and part.function.name is None for part in parts[1:])
        assert json.loads("".join(part.function.arguments for part in parts))["n"] == 2
    assert [reason for _, reason in deltas if reason] == ["tool_calls"]


def test_the_sdk_puts_a_stream_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="fake", messages=say(THOUGHTS + CALL), tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls
    assert json.loads(message.tool_calls[0].function.arguments) == {"at": "Paris", "n": 2}


@pytest.mark.parametrize("interval", [1, 7, 1000])
def test_logprobs_and_ids_of_every_token_once(script_server: Running, interval: int) -> None:
    text = THOUGHTS + "Yes." + CALL
    chunks = events(
        script_server.chat(
            text, tools=TOOLS, stream=True, logprobs=True, return_token_ids=True, stream_interval=interval
        )
    )
    choices = [chunk["choices"][0] for chunk in chunks[1:]]
    ids = [id for choice in choices for id in choice["token_ids"]]
    assert len(ids) == sum(len((choice["logprobs"] or {}).get("content") or ()) for choice in choices)
    assert ids[-1] == EOS
    assert script_server.post("/detokenize", tokens=ids[:-1]).json()["prompt"] == text
    whole = script_server.chat(text, tools=TOOLS, return_token_ids=True).json()["choices"][0]
    assert whole["token_ids"] == ids
    said = [choice["delta"] for choice in choices]
    assert "".join(delta.get("reasoning") or "" for delta in said) == whole["message"]["reasoning"]
    assert "".join(delta.get("content") or "" for delta in said) == whole["message"]["content"] == "Yes."


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, {"content": "Yes.", "reasoning": "hm"}),
        ({"include_reasoning": False}, {"content": "Yes.", "reasoning": None}),
        ({"reasoning_effort": "none"}, {"content": "Yes.", "reasoning": "hm"}),  # the model thinks nevertheless
        ({"script": "hm"}, {"content": None, "reasoning": "hm"}),
        ({"script": "hm", "chat_template_kwargs": {"enable_thinking": False}}, {"content": "hm", "reasoning": None}),
        ({"script": "hm", "reasoning_effort": "none"}, {"content": "hm", "reasoning": None}),
        ({"script": "hm", "chat_template_kwargs": {"tail": "<think>\n\n</think>\n\n"}}, {"content": "hm"}),
        ({"script": "hm\n</think>Yes<|im_end|>."}, {"content": "Yes.", "reasoning": "hm"}),
        ({"script": "</think>a<|im_end|>", "skip_special_tokens": False}, {"content": "a<|im_end|>"}),
        ({"script": f"</think>{CALL}"}, {"content": CALL, "reasoning": None}),  # no tools, no calls
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning(script_server: Running, body: dict[str, Any], message: dict[str, Any], stream: bool) -> None:
    script = {"script": "<think>hm</think>\nYes.", **body}
    response = script_server.chat(script.pop("script"), stream=stream, **script)
    if not stream:
        got = response.json()["choices"][0]["message"]
        assert {key: got[key] for key in message} == message
        return
    deltas = [chunk["choices"][0]["delta"] for chunk in events(response)]
    for key, text in message.items():
        assert "".join(delta.get(key) or "" for delta in deltas) == (text or "")


def test_calls_one_by_one(script_server: Running) -> None:
    answer = script_server.chat("</think>" + CALL + OTHER, tools=TOOLS, parallel_tool_calls=False).json()["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert "Paris" in call["function"]["arguments"]
    assert answer["message"]["content"] is None


def test_a_call_cut_short_ends_with_length(script_server: Running) -> None:
    script = "</think>" + CALL
    answer = script_server.chat(script, tools=TOOLS, max_tokens=len(script) - 30).json()["choices"][0]
    assert answer["finish_reason"] == "length"
    assert answer["message"]["tool_calls"][0]["function"]["name"] == "look"


def test_no_calls_if_none_are_wanted(script_server: Running) -> None:
    answer = script_server.chat("</think>" + CALL, tools=TOOLS, tool_choice="none").json()["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == (CALL, "stop")


ARRAY = '[{"name": "look", "parameters": {"at": "Paris"}}, {"name": "stop", "parameters": {}}]'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "script", "calls", "reason"),
    [
        ("required", ARRAY, [("look", {"at": "Paris"}), ("stop", {})], "tool_calls"),
        (NAMED, '{"at": "Paris"}', [("look", {"at": "Paris"})], "stop"),
    ],
)
def test_forced_calls(
    script_server: Running, choice: Any, script: str, calls: list[Any], reason: str, stream: bool
) -> None:
    response = script_server.chat(f"hm</think>{script}", tools=TOOLS, tool_choice=choice, stream=stream)
    if stream:
        found: dict[int, list[str]] = {}
        choices = [chunk["choices"][0] for chunk in events(response)]
        for part in (part for one in choices for part in one["delta"].get("tool_calls") or ()):
            found.setdefault(part["index"], [part["function"].get("name") or "", ""])[1] += part["function"][
                "arguments"
            ]
        got, ended = list(found.values()), choices[-1]["finish_reason"]
        assert "".join(one["delta"].get("reasoning") or "" for one in choices) == "hm"
    else:
        (one,) = response.json()["choices"]
        got, ended = [list(call["function"].values()) for call in one["message"]["tool_calls"]], one["finish_reason"]
        assert (one["message"]["content"], one["message"]["reasoning"]) == (None, "hm")
    assert [(name, json.loads(arguments)) for name, arguments in got] == calls
    assert ended == reason


def form(server: Running, **body: Any) -> dict[str, Any]:
    """What the engine has to hold the answer to."""
    rendered = server.post("/v1/chat/completions/render", messages=say("x"), tools=TOOLS, **body)
    assert rendered.status_code == 200, rendered.text
    spec: dict[str, Any] = rendered.json()["sampling_params"].get("structured_outputs") or {}
    return spec


def test_forms_hold_behind_thoughts(script_server: Running) -> None:
    thinking = {"starts": ["<think>"], "ends": ["</think>"], "opened": True}
    spec = form(script_server, tool_choice="required")
    assert spec["thinking"] == thinking
    assert '"name\\": \\"look' in spec["structural_tag"]
    assert form(script_server, tool_choice=NAMED)["thinking"] == thinking
    wanted = {"type": "json_object"}
    assert form(script_server, response_format=wanted, tool_choice="none")["thinking"] == thinking
    off = {"enable_thinking": False}
    assert "thinking" not in form(script_server, response_format=wanted, tool_choice="none", chat_template_kwargs=off)
    assert "thinking" not in form(script_server, response_format=wanted, tool_choice="none", include_reasoning=False)
    assert form(script_server) == {}
    strict = [{"type": "function", "function": {**LOOK, "strict": True}}]
    rendered = script_server.post("/v1/chat/completions/render", messages=say("x"), tools=strict).json()
    assert "triggered_tags" in rendered["sampling_params"]["structured_outputs"]["structural_tag"]


def test_without_reasoning_a_form_holds_at_once(script_server: Running) -> None:
    body = {"response_format": {"type": "json_object"}, "include_reasoning": False}
    message = script_server.chat('{"a": 1}', **body).json()["choices"][0]["message"]
    assert message["content"] == '{"a": 1}'


def test_budgets(script_server: Running) -> None:
    spec = form(script_server, thinking_token_budget=5)
    assert spec == {"thinking": {"starts": ["<think>"], "ends": ["</think>"], "opened": True, "budget": 5}}
    refused = script_server.chat("x", thinking_token_budget=-1)
    assert refused.status_code == 400


def test_what_was_said_before_reaches_the_template(script_server: Running) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    before: list[Any] = [
        {"role": "assistant", "reasoning": "hm", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "</think>found"},
    ]
    answer = script_server.post("/v1/chat/completions", messages=before, return_prompt_text=True).json()
    assert 'assistant:hm|None|[{"id": "c1"' in answer["prompt_text"]
    assert '"arguments": {"at": 1}' in answer["prompt_text"]
    assert answer["choices"][0]["message"]["content"] == "found"


def test_responses(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", **LOOK}]
    answer = client.responses.create(model="fake", input=THOUGHTS + "Yes." + CALL, tools=tools)
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    reasoning, message, call = answer.output
    assert reasoning.type == "reasoning"
    assert reasoning.content
    assert reasoning.content[0].text == "Let me é see."
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("look", {"at": "Paris", "n": 2})
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    found = {"type": "function_call_output", "call_id": call.call_id, "output": "</think>done"}
    history: list[Any] = [*(item.model_dump(exclude_none=True) for item in (reasoning, message, call)), found]
    assert client.responses.create(model="fake", input=history).output_text == "done"


def test_a_stream_of_responses(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", **LOOK}]
    stream = client.responses.create(model="fake", input=THOUGHTS + CALL, tools=tools, stream=True)
    told = list(stream)
    texts: dict[str, str] = {}
    for event in told:
        if event.type in ("response.reasoning_text.delta", "response.function_call_arguments.delta"):
            texts[event.type] = texts.get(event.type, "") + event.delta
    assert texts["response.reasoning_text.delta"] == "Let me é see."
    assert json.loads(texts["response.function_call_arguments.delta"]) == {"at": "Paris", "n": 2}
    done = [event.type for event in told if event.type.endswith(".done")]
    assert done == [
        "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
        "response.function_call_arguments.done", "response.output_item.done",
    ]  # fmt: skip
    assert told[-1].type == "response.completed"


CLAUDE_TOOLS: list[Any] = [{"name": "look", "input_schema": LOOK["parameters"]}]


def test_messages(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.create(
        model="fake", max_tokens=3000, messages=say(THOUGHTS + "Yes." + CALL), tools=CLAUDE_TOOLS
    )
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use"]
    assert answer.stop_reason == "tool_use"
    thinking, _, use = answer.content
    assert thinking.type == "thinking"
    assert thinking.thinking == "Let me é see."
    assert use.type == "tool_use"
    assert (use.name, use.input) == ("look", {"at": "Paris", "n": 2})
    blocks = [block.model_dump(exclude_none=True) for block in answer.content]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "</think>done"}
    history: list[Any] = [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
    again = claude.messages.create(model="fake", max_tokens=3000, messages=history, tools=CLAUDE_TOOLS)
    assert [getattr(block, "text", None) for block in again.content] == ["done"]


@pytest.mark.parametrize("forced", [False, True])
def test_a_stream_of_messages(claude: anthropic.Anthropic, forced: bool) -> None:
    script = THOUGHTS + ('{"at": "Paris", "n": 2}' if forced else CALL)
    more: dict[str, Any] = {"tool_choice": {"type": "tool", "name": "look"}} if forced else {}
    with claude.messages.stream(
        model="fake", max_tokens=3000, messages=say(script), tools=CLAUDE_TOOLS,
        thinking={"type": "enabled", "budget_tokens": 2000}, **more,
    ) as stream:  # fmt: skip
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2
    thinking, use = message.content
    assert thinking.type == "thinking"
    assert thinking.thinking == "Let me é see."
    assert use.type == "tool_use"
    assert use.input == {"at": "Paris", "n": 2}
    assert message.stop_reason == "tool_use"
