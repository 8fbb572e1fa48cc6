"""Requests of OpenAI's Responses API, and the chat requests they become."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from vjax.errors import RequestError
from vjax.serving.dialects import make_chat, objects, text_field, text_of
from vjax.serving.protocol import ChatRequest, Many, at_most

# Fields that mean in a chat what they mean here; the chat request checks them.
SHARED = (
    "temperature", "top_p", "top_k", "min_p", "skip_special_tokens", "include_stop_str_in_output", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "seed", "stop", "ignore_eos", "structured_outputs", "vllm_xargs",
    "cache_salt", "priority", "chat_template_kwargs", "user", "include_reasoning", "logit_bias", "stream_interval",
    "thinking_token_budget",
)  # fmt: skip
LOGPROBS = "message.output_text.logprobs"
REASONING = {"reasoning_text": "text", "summary_text": "text"}
OUTPUT = {"input_text": "text", "output_text": "text", "text": "text"}


class ResponsesRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str | None = None
    input: str | Many[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, gt=0)
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    tools: Many[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    truncation: str | None = None
    top_logprobs: int | None = None
    include: Many[str] | None = None
    metadata: Annotated[dict[str, str] | None, at_most(64)] = None
    prompt: dict[str, Any] | None = None
    conversation: Any = None

    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())


def to_chat(body: ResponsesRequest, messages: list[dict[str, Any]], stream: bool) -> ChatRequest:
    """Raises `RequestError` naming what cannot be said in a chat. `messages`: the whole conversation."""
    for name in ("prompt", "conversation"):
        if getattr(body, name):
            raise RequestError(f"{name} is not supported: this server stores none.", name)
    if body.truncation not in (None, "auto", "disabled"):
        raise RequestError(f"truncation must be auto or disabled, got {body.truncation!r}.", "truncation")
    extra = body.model_extra or {}
    shared = {name: extra[name] for name in SHARED if name in extra}
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    tools = _tools(body.tools)
    truncated = body.truncation == "auto"
    return make_chat(
        model=body.model,
        messages=_one_system([*system, *messages]),
        tools=tools,
        tool_choice=_tool_choice(body.tool_choice) if tools else None,
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=(body.reasoning or {}).get("effort"),
        response_format=_format((body.text or {}).get("format")),
        logprobs=True if body.wants_logprobs() else None,
        top_logprobs=body.top_logprobs if body.wants_logprobs() else None,
        max_tokens=body.max_output_tokens if truncated else None,
        truncate_prompt_tokens=-1 if truncated else None,
        stream=stream,
        stream_options={"include_usage": True} if stream else None,
        **shared,
    )


def to_messages(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Input items, and output items of earlier answers, as chat messages."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not given:
        raise RequestError("the input is empty.", "input")
    messages: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for at, item in enumerate(given):
        where, kind = f"input.{at}", item.get("type", "message")
        if kind == "reasoning":
            thoughts.append(_thought(item, where))
        elif kind == "function_call":
            _add_call(messages, item, where, thoughts)
        elif kind == "function_call_output":
            text = text_of(item.get("output"), f"{where}.output", OUTPUT)
            messages.append({"role": "tool", "tool_call_id": text_field(item, "call_id", where), "content": text})
        elif kind == "message":
            messages.append(_message(item, where, thoughts))
        else:
            raise RequestError(f"{where}: an item of type {kind!r} is not supported.", where)
    return messages


def _message(item: dict[str, Any], where: str, thoughts: list[str]) -> dict[str, Any]:
    role = text_field(item, "role", where)
    content = item.get("content")
    if not isinstance(content, (str, list)):
        raise RequestError(f"{where}.content must be text or a list of parts.", f"{where}.content")
    message: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": content}
    return _with_thoughts(message, thoughts)


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], where: str, thoughts: list[str]) -> None:
    """A call belongs to what the assistant said before it, and to its other calls."""
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        raise RequestError(f"{where}.arguments must be a string.", f"{where}.arguments")
    function = {"name": text_field(item, "name", where), "arguments": arguments}
    call = {"id": text_field(item, "call_id", where), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant" or thoughts:
        messages.append(_with_thoughts({"role": "assistant", "content": None}, thoughts))
    messages[-1].setdefault("tool_calls", []).append(call)


def _with_thoughts(message: dict[str, Any], thoughts: list[str]) -> dict[str, Any]:
    if thoughts and message["role"] == "assistant":
        message["reasoning"] = "\n".join(thoughts)
    thoughts.clear()
    return message


def _thought(item: dict[str, Any], where: str) -> str:
    return text_of(item.get("content") or item.get("summary"), f"{where}.content", REASONING)


def _one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Most templates take one system message, at the start: instructions and a first one are joined."""
    count = 0
    while count < len(messages) and messages[count]["role"] == "system":
        count += 1
    if count < 2:
        return messages
    texts = [text_of(message["content"], "input", OUTPUT) for message in messages[:count]]
    return [{"role": "system", "content": "\n\n".join(texts)}, *messages[count:]]


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    found = []
    for at, tool in enumerate(tools or ()):
        where = f"tools.{at}"
        if tool.get("type") != "function":
            raise RequestError(f"{where}.type must be function: this server has no tools of its own.", f"{where}.type")
        names = ("name", "description", "parameters", "strict")
        function = {name: tool[name] for name in names if tool.get(name) is not None}
        text_field(function, "name", where)
        found.append({"type": "function", "function": function})
    return found or None


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "function":
        raise RequestError("tool_choice must be auto, none, required or a function.", "tool_choice")
    return {"type": "function", "function": {"name": text_field(choice, "name", "tool_choice")}}


def _format(wanted: Any) -> dict[str, Any] | None:
    """`text.format` as chat's `response_format`."""
    if wanted is None:
        return None
    (wanted,) = objects([wanted], "text.format")
    if wanted.get("type") != "json_schema":
        return wanted
    schema = {
        name: wanted[name] for name in ("name", "schema", "strict", "description") if wanted.get(name) is not None
    }
    return {"type": "json_schema", "json_schema": schema}
