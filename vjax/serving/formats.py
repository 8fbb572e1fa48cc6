"""How this server's model writes thoughts and calls, and what that makes of one request's answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from vjax.errors import RequestError
from vjax.parsing.output import NamedCall, OutputParser, answer_parser
from vjax.parsing.reasoning import Marks, Opening, continued, detect, marks_of, opening
from vjax.parsing.tools import detect as detect_calls
from vjax.serving.options import ServerOptions
from vjax.serving.tools import check_choice, check_tools, named_form, required_form, strict_form
from vjax.structured_outputs import StructuredOutputsParams, Thinking

if TYPE_CHECKING:
    from vjax.serving.protocol import ChatRequest
    from vjax.tokenizing.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Formats:
    """What is None is not parsed."""

    marks: Marks | None = None
    calls: str | None = None
    auto_choice: bool = False
    shown: Mapping[int, str] = field(default_factory=dict)  # special tokens that may be marks, and their texts
    start_ids: frozenset[int] = frozenset()  # tokens that begin thoughts
    end_ids: frozenset[int] = frozenset()

    @property
    def forces_ends(self) -> bool:
        """Whether thoughts can be ended after some tokens."""
        return bool(self.end_ids) and find_spec("llguidance") is not None

    @classmethod
    def of(cls, options: ServerOptions, tokenizer: Tokenizer | None, template: str | None) -> Formats:
        """`auto` takes what the template tells."""
        template = template or (tokenizer.chat_template if tokenizer is not None else None) or ""
        reasoning, calls = options.reasoning_parser, options.tool_call_parser
        if reasoning == "auto":
            reasoning = detect(template)
            log.info("reasoning parser: %s", reasoning or "none, as the chat template knows no thoughts")
        if calls == "auto":
            calls = detect_calls(template)
            log.info("tool call parser: %s", calls or "none, as the chat template shows no known format")
        if tokenizer is None or not (reasoning or calls):
            return cls()
        marks = (
            None if reasoning is None else marks_of(reasoning, template, map(tokenizer.token_text, tokenizer.added_ids))
        )
        hidden = {*tokenizer.eos_token_ids, *map(tokenizer.token_id, tokenizer.special_tokens.values())}
        shown = {id: tokenizer.token_text(id) for id in tokenizer.special_ids - hidden}
        starts, ends = (_ids(tokenizer, side) for side in ((marks.starts, marks.ends) if marks else ((), ())))
        return cls(marks, calls, options.enable_auto_tool_choice and bool(calls), shown, starts, ends)


def _ids(tokenizer: Tokenizer, marks: tuple[str, ...]) -> frozenset[int]:
    found = (tokenizer.token_id(mark.strip()) for mark in marks)
    return frozenset(id for id in found if id is not None)


class AnswerPlan:
    """What one chat's answer has to look like, and how it is taken apart. Raises `RequestError` for tools, choices and
    budgets that this server cannot serve."""

    def __init__(self, formats: Formats, body: ChatRequest) -> None:
        self.formats, self.body = formats, body
        self.functions = check_tools(body.tools or [])
        self.named = check_choice(body.tool_choice, self.functions)
        self.choice = "none"  # auto, required or named
        if body.tools:
            self.choice = body.tool_choice if isinstance(body.tool_choice, str) else "named" if self.named else "auto"
        self.only_one = body.parallel_tool_calls is False
        self.opening: Opening = "closed"
        if self.choice == "auto" and not formats.auto_choice:
            raise RequestError(
                'tool_choice "auto" needs a server started with --enable-auto-tool-choice and --tool-call-parser.',
                "tool_choice",
            )
        if self.must_call and body.use_beam_search:
            raise RequestError("a call cannot be forced with use_beam_search.", "tool_choice")
        if self.must_call and body.structured_outputs is not None:
            raise RequestError("structured_outputs does not go with a tool_choice that forces a call.", "tool_choice")
        if body.thinking_token_budget is not None and formats.marks is None:
            raise RequestError("thinking_token_budget needs a server with --reasoning-parser.", "thinking_token_budget")

    @property
    def must_call(self) -> bool:
        return self.choice in ("required", "named")

    @property
    def marks(self) -> Marks | None:
        """None too where a form holds from the first token on, so that there are no thoughts."""
        at_once = not self.body.include_reasoning and self._form() is not None
        return None if at_once else self.formats.marks

    def begin(self, prompt: str, variables: Mapping[str, Any]) -> None:
        """Take in how the prompt ends."""
        marks, last = self.formats.marks, self.body.messages[-1]
        if marks is None:
            return
        if self.body.continue_final_message and isinstance(text := last.get("content"), str):
            self.opening = continued(marks, text)
        else:
            self.opening = opening(marks, variables, prompt)

    def form(self) -> StructuredOutputsParams | None:
        """What the tokens have to be. Raises `RequestError`."""
        form, marks, budget = self._form(), self.marks, self.body.thinking_token_budget
        if marks is None or (form is None and budget is None) or self.opening == "closed" or not marks.ends:
            return form
        thinking = Thinking(marks.starts, marks.ends, self.opening == "open", budget, marks.lead)
        if form is None:
            return StructuredOutputsParams(thinking=msgspec.structs.replace(thinking, lead=""))
        return msgspec.structs.replace(form, thinking=thinking)

    def _form(self) -> StructuredOutputsParams | None:
        if self.named is not None:
            return named_form(self.functions[self.named])
        if self.choice == "required":
            return required_form(self.functions, self.only_one)
        form = self.body.constraint()
        if form is None and self.choice == "auto":
            return strict_form(self.formats.calls, self.functions, self.only_one)
        return form

    def refusal(self, error: RequestError) -> RequestError:
        """An error about a form that the client did not write."""
        about = (error.param or "").startswith(("structured_outputs", "response_format"))
        if about and (self.must_call or self.body.constraint() is None):
            where = "tool_choice" if error.param == "structured_outputs" else "tools"
            return RequestError(str(error).replace(str(error.param), where), where)
        return error

    def parser(self) -> OutputParser | None:
        """Of one answer; None where its text is its content."""
        marks, opened = self.marks, self.opening == "open"
        if self.named is not None:
            return OutputParser(self._thoughts(), NamedCall(self.named))
        calls = {"auto": self.formats.calls, "required": "json_array"}.get(self.choice)
        if marks is None and calls is None:
            return None
        return answer_parser(marks, opened, calls, self.body.tools or [], only_first_call=self.only_one)

    def _thoughts(self) -> OutputParser | None:
        if self.marks is None:
            return None
        return answer_parser(self.marks, self.opening == "open", None, self.body.tools or [])
