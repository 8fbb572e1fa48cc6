"""Anthropic's Messages requests, and the chat requests they become."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vjax.errors import RequestError
from vjax.serving.dialects import make_chat, objects, text_field, text_of
from vjax.serving.protocol import ChatRequest, Many
from vjax.structured_outputs import MAX_BUDGET

TEXT = {"text": "text"}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class ToolChoice(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(default=None, min_length=1)
    disable_parallel_tool_use: bool | None = None


class CountRequest(BaseModel):
    """What has tokens. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    messages: Many[dict[str, Any]] = Field(min_length=1)
    system: str | Many[dict[str, Any]] | None = None
    tools: Many[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    max_tokens: int = Field(gt=0)
    stop_sequences: Many[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None
    mcp_servers: Many[dict[str, Any]] | None = None
    cache_salt: str | None = None
    priority: int = 0
    vllm_xargs: dict[str, Any] | None = None


def to_chat(body: CountRequest, **fields: Any) -> ChatRequest:
    """Raises `RequestError` naming what cannot be said in a chat."""
    messages = [{"role": "system", "content": system}] if (system := text_of(body.system, "system", TEXT)) else []
    for at, message in enumerate(body.messages):
        messages += _messages(message, f"messages.{at}")
    config = body.output_config or {}
    return make_chat(
        model=body.model,
        messages=messages,
        tools=_tools(body.tools),
        tool_choice=_tool_choice(body.tool_choice) if body.tools else None,
        parallel_tool_calls=body.tool_choice is None or not body.tool_choice.disable_parallel_tool_use,
        reasoning_effort=config.get("effort"),
        response_format=_format(config.get("format")),
        chat_template_kwargs=_variables(body),
        **fields,
    )


def thinking_budget(body: MessagesRequest) -> int | None:
    budget = (body.thinking or {}).get("budget_tokens")
    return min(budget, MAX_BUDGET) if type(budget) is int and budget >= 0 else None


def sampling_fields(body: MessagesRequest) -> dict[str, Any]:
    if body.mcp_servers:
        raise RequestError("mcp_servers are not supported: this server calls no tools itself.", "mcp_servers")
    return {
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "cache_salt": body.cache_salt,
        "priority": body.priority,
        "vllm_xargs": body.vllm_xargs,
    }


def _messages(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """A turn as chat messages: the results of tools are messages of their own."""
    role, content = text_field(message, "role", where), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise RequestError(f"{where}.role must be user or assistant, got {role!r}.", f"{where}.role")
    where = f"{where}.content"
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = objects(content, where)
    return [_assistant(blocks, where)] if role == "assistant" else _user(role, blocks, where)


def _user(role: str, blocks: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        kind, place = block.get("type"), f"{where}.{at}"
        if kind == "tool_result":
            id = text_field(block, "tool_use_id", place)
            text = text_of(block.get("content"), f"{place}.content", TEXT)
            results.append({"role": "tool", "tool_call_id": id, "content": text})
        else:
            parts.append(_part(block, place))
    return [*results, {"role": role, "content": parts}] if parts or not results else results


def _part(block: dict[str, Any], where: str) -> dict[str, Any]:
    """Text, or an image as chat has it."""
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    source = block.get("source")
    if kind == "image" and isinstance(source, dict):
        url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise RequestError(f"{where}: a block of type {kind!r} is not supported here.", where)


def _assistant(blocks: list[dict[str, Any]], where: str) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        kind, place = block.get("type"), f"{where}.{at}"
        if kind == "text":
            texts.append(text_of([block], place, TEXT))
        elif kind == "thinking":
            thoughts.append(text_of([block], place, {"thinking": "thinking"}))
        elif kind == "tool_use":
            function = {"name": text_field(block, "name", place), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": text_field(block, "id", place), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            raise RequestError(f"{place}: a block of type {kind!r} is not supported here.", place)
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts) if texts or not calls else None}
    if thoughts:
        message["reasoning"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    found = []
    for at, tool in enumerate(tools or ()):
        where = f"tools.{at}"
        if tool.get("type") not in (None, "custom"):
            raise RequestError(f"{where}: this server has no tool of its own of type {tool['type']!r}.", where)
        schema = tool.get("input_schema")
        function = {
            "name": text_field(tool, "name", where),
            "description": tool.get("description") or "",
            "parameters": {"type": "object", **(schema if isinstance(schema, dict) else {})},
            **({"strict": True} if tool.get("strict") is True else {}),
        }
        found.append({"type": "function", "function": function})
    return found or None


def _tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if choice.type != "tool":
        return CHOICES[choice.type]
    if choice.name is None:
        raise RequestError("tool_choice.name must name a tool.", "tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def _format(wanted: Any) -> dict[str, Any] | None:
    if wanted is None:
        return None
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        raise RequestError("output_config.format must be of type json_schema.", "output_config")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": wanted.get("schema")}}


def _variables(body: CountRequest) -> dict[str, Any] | None:
    """`thinking` as the variable that templates know."""
    kind = (body.thinking or {}).get("type")
    if kind not in ("enabled", "disabled"):
        return body.chat_template_kwargs
    return {"enable_thinking": kind == "enabled", **(body.chat_template_kwargs or {})}
