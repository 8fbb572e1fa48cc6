"""From a conversation to the text of a prompt, by the chat template."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

from vjax.errors import RequestError
from vjax.serving.service import Service
from vjax.tokenizing.time_limit import within

# Names that a template gets from elsewhere; a request may not set them through chat_template_kwargs.
RESERVED = {
    "self", "template", "chat_template", "messages", "tools", "documents", "add_generation_prompt",
    "continue_final_message", "tokenize",
}  # fmt: skip

TEMPLATE_SECONDS = 10.0  # for a request's own template

# Kinds of content parts, and where their text is.
TEXT_PARTS = {
    "text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"
}  # fmt: skip


async def render(service: Service, body: Any) -> str:
    """The prompt text of a chat or tokenize request. Runs in a thread, as templates are programs."""
    messages = [normalise(message, at) for at, message in enumerate(body.messages)]
    variables = template_variables(body)
    own = request_template(service, body)
    work = partial(
        service.tokenizer.render_chat,
        messages,
        tools=None if getattr(body, "tool_choice", None) == "none" else body.tools,
        documents=getattr(body, "documents", None),
        add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
        continue_final_message=body.continue_final_message,
        chat_template=own or service.chat_template,
        **variables,
    )
    if own is None:
        return await asyncio.to_thread(work)
    try:
        return await asyncio.to_thread(within, TEMPLATE_SECONDS, work)
    except TimeoutError as error:
        raise RequestError(f"The chat template does not end: {error}.", "chat_template") from None


def template_variables(body: Any) -> dict[str, Any]:
    """What a request gives its template beside the conversation."""
    variables = dict(body.chat_template_kwargs or {})
    if clash := sorted(RESERVED & set(variables)):
        raise RequestError(f"chat_template_kwargs may not set {clash[0]!r}.", "chat_template_kwargs")
    effort = getattr(body, "reasoning_effort", None)
    if effort is not None:
        variables = {"reasoning_effort": effort, "enable_thinking": effort != "none", **variables}
    return variables


def request_template(service: Service, body: Any) -> str | None:
    """The request's own chat template, where the operator lets it bring one."""
    template: str | None = getattr(body, "chat_template", None)
    if template is not None and not service.options.trust_request_chat_template:
        raise RequestError(
            "this server takes no chat templates from requests (--trust-request-chat-template).", "chat_template"
        )
    return template


def normalise(message: dict[str, Any], at: int) -> dict[str, Any]:
    """A message as templates expect it: text content, and the arguments of earlier tool calls as objects."""
    where = f"messages.{at}"
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise RequestError(f"{where}.role must be a non-empty string.", f"{where}.role")
    message = {**message, "content": _text(message.get("content"), f"{where}.content")}
    thoughts = message.get("reasoning", message.get("reasoning_content"))
    if thoughts is not None:  # templates have one of three names for it
        message["reasoning"] = message["reasoning_content"] = thoughts
        if not (message["content"] and message.get("tool_calls")):  # gpt-oss' refuses all three in one message
            message.setdefault("thinking", thoughts)
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise RequestError(f"{where}.tool_calls must be a list.", f"{where}.tool_calls")
        message["tool_calls"] = [_tool_call(call, f"{where}.tool_calls") for call in calls]
    return message


def _text(content: Any, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be text or a list of parts.", where)
    texts: list[str] = []
    for part in content:
        part = {"type": "text", "text": part} if isinstance(part, str) else part
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise RequestError(f"{where} must hold strings, or objects with a type.", where)
        if kind not in TEXT_PARTS:
            raise RequestError(f"{where} holds a part of type {kind!r}; this model reads text only.", where)
        text = part.get(TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise RequestError(f"{where} holds a part without text.", where)
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise RequestError(f"{where} must hold objects with a function.", where)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise RequestError(f"{where} holds arguments that are not JSON.", where) from None
    return {**call, "function": {**function, "arguments": arguments}}
