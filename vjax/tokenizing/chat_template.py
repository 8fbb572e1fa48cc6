"""Renders chat templates: Jinja as Hugging Face's tokenizers use it, in a sandbox and within bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vjax.errors import RequestError

MAX_TEMPLATE_CHARS = 1 << 20
MAX_OUTPUT_CHARS = 1 << 26
MAX_REPEAT = 1 << 16  # items of `text * n` inside a template
# The trailing space tells whether the template strips the content it prints.
_END_OF_CONTENT = "\u2060vjax-end-of-content\u2060 "

Message = Mapping[str, Any]


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training; for serving its body is all."""

    tags = {"generation"}  # noqa: RUF012 - declared by Jinja as an instance variable

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**"))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        padding = isinstance(obj, str) and attr in ("center", "expandtabs", "ljust", "rjust", "zfill")
        return not padding and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("powers are not allowed in a chat template")
        for sized, times in ((left, right), (right, left)):
            if hasattr(sized, "__len__") and isinstance(times, int) and len(sized) * times > MAX_REPEAT:
                raise SecurityError(f"a repetition yields more than {MAX_REPEAT} items")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML and sorts keys, which models have not seen.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag])
    environment.filters["tojson"] = _tojson
    del environment.filters["center"], environment.globals["lipsum"]  # text of any size from a small template
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


@lru_cache(maxsize=64)
def compile_template(template: str) -> Template:
    """The compiled template. Raises `RequestError` with the line of a syntax error."""
    if len(template) > MAX_TEMPLATE_CHARS:
        raise RequestError(f"The chat template is longer than {MAX_TEMPLATE_CHARS} characters.", "chat_template")
    try:
        return _environment().from_string(template)
    except TemplateSyntaxError as error:
        raise RequestError(f"The chat template, line {error.lineno}: {error.message}", "chat_template") from None
    except (RecursionError, MemoryError, OverflowError, SyntaxError) as error:
        raise RequestError(f"The chat template does not compile: {type(error).__name__}.", "chat_template") from None


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    **variables: Any,
) -> str:
    """The prompt text of a conversation.

    `variables` reach the template as they are (`bos_token`, `eos_token`, `enable_thinking`, ...).
    `continue_final_message` ends the text right behind the last message's content, so that the model goes on
    with it; it excludes `add_generation_prompt`.

    Raises `RequestError` when the template fails, refuses the messages, or renders more than `MAX_OUTPUT_CHARS`.
    """
    if continue_final_message:
        if add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other.", "continue_final_message"
            )
        messages = _mark_end(messages)
    text = _render(
        compile_template(template),
        {
            **variables,
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        },
    )
    return _cut_at_mark(text) if continue_final_message else text


def _render(template: Template, variables: dict[str, Any]) -> str:
    parts: list[str] = []
    size = 0
    try:
        for part in template.generate(variables):
            size += len(part)
            if size > MAX_OUTPUT_CHARS:
                raise TemplateError(f"it renders more than {MAX_OUTPUT_CHARS} characters")
            parts.append(part)
    except Exception as error:  # a template can make Python raise anything
        line = _template_line(error)
        where = f", line {line}" if line else ""
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(f"The chat template{where}: {reason}", "messages") from None
    return "".join(parts)


def _template_line(error: BaseException) -> int | None:
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _mark_end(messages: Sequence[Message]) -> list[Message]:
    """The messages with a mark behind the last one's text."""
    if not messages:
        raise RequestError("continue_final_message needs a message to continue.", "messages")
    last = dict(messages[-1])
    content = last.get("content")
    if isinstance(content, str):
        last["content"] = content + _END_OF_CONTENT
    elif isinstance(content, Sequence) and content and isinstance(content[-1], Mapping) and "text" in content[-1]:
        last["content"] = [*content[:-1], {**content[-1], "text": content[-1]["text"] + _END_OF_CONTENT}]
    else:
        raise RequestError("continue_final_message needs a last message that ends in text.", "messages")
    return [*messages[:-1], last]


def _cut_at_mark(text: str) -> str:
    at = text.rfind(_END_OF_CONTENT.rstrip())
    if at < 0:
        raise RequestError(
            "continue_final_message: the chat template does not print the last message's content.", "messages"
        )
    return text[:at] if text.startswith(_END_OF_CONTENT, at) else text[:at].rstrip()
