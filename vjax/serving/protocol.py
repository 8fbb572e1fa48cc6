"""Requests as OpenAI's and vLLM's clients send them. Unknown fields are accepted and ignored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from vjax.errors import RequestError
from vjax.sampling_params import MAX_BIASES, SamplingParams, check_extra_args
from vjax.structured_outputs import FIELD, MAX_BUDGET, StructuredOutputsParams

# Request field -> SamplingParams field, where both mean the same.
SAMPLING = (
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p",
    "seed", "stop", "stop_token_ids", "bad_words", "ignore_eos", "min_tokens", "prompt_logprobs", "logit_bias",
    "allowed_token_ids", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
    "truncate_prompt_tokens", "truncation_side", "logprob_token_ids", "repetition_detection",
)  # fmt: skip
# What a search of the model's own probabilities cannot honour; it ignores temperature and truncation, as in vLLM.
NOT_WITH_BEAMS = (
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words",
    "min_tokens", "stop", "stop_token_ids", "prompt_logprobs", "logprob_token_ids", "repetition_detection",
    "structured_outputs", "response_format", "vllm_xargs",
)  # fmt: skip
NEUTRAL: dict[str, Any] = {"repetition_penalty": 1, "response_format": {"type": "text"}}
WITH_BEAMS = (
    "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
    "truncate_prompt_tokens", "truncation_side",
)  # fmt: skip


T = TypeVar("T")
# Only the first wrong entry is told of: a million of them would take gigabytes.
Many = Annotated[list[T], Field(fail_fast=True)]


def at_most(entries: int) -> BeforeValidator:
    """Refuses a larger object before its values are looked at, for the same reason."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > entries:
            raise ValueError(f"holds at most {entries} entries, got {len(value)}")
        return value

    return BeforeValidator(check)


class StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(BaseModel):
    """Fields that chat and completion requests share. None means: the server's default."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Many[str] | None = None
    stop_token_ids: Many[int] | None = None
    bad_words: Many[str] | None = None
    ignore_eos: bool | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Annotated[dict[str, float] | None, at_most(MAX_BIASES)] = None
    allowed_token_ids: Many[int] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    logprob_token_ids: Many[int] | None = None
    repetition_detection: Annotated[dict[str, int] | None, at_most(16)] = None
    vllm_xargs: dict[str, Any] | None = None
    stream_interval: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    request_id: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _streaming(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream=true")
        if self.stream and self.prompt_logprobs:
            raise ValueError("prompt_logprobs cannot be streamed")
        return self

    def refuse_unsupported(self) -> None:
        """What is accepted by name but not built yet is refused, not ignored: the answer would be wrong."""
        if self.use_beam_search:
            self._refuse_with_beams()

    def sampling(self, defaults: SamplingParams, **changes: Any) -> SamplingParams:
        """The request's sampling parameters over the server's defaults."""
        changes["output_kind"] = "delta" if self.stream else "final_only"
        if self.use_beam_search:
            return SamplingParams(temperature=0.0, **self._given(WITH_BEAMS), **changes)
        check_extra_args(self.vllm_xargs, "vllm_xargs")
        changes |= {"extra_args": self.vllm_xargs, "structured_outputs": self.constraint()}
        return defaults.clone(**{**self._given(SAMPLING), **changes})

    def constraint(self) -> StructuredOutputsParams | None:
        """What the answer has to look like."""
        try:
            form = None
            if self.response_format is not None:
                form = StructuredOutputsParams.from_response_format(self.response_format)
        except RequestError as error:
            raise self.as_named(error) from None
        if self.structured_outputs is None:
            return form
        if form is not None:
            raise RequestError("response_format and structured_outputs exclude each other.", "structured_outputs")
        return StructuredOutputsParams.from_mapping(self.structured_outputs)

    def as_named(self, error: RequestError) -> RequestError:
        """An error about the answer's form, with the name that the request has for it."""
        if self.response_format is None or not (error.param or "").startswith(FIELD):
            return error
        message = str(error).replace(str(error.param), "response_format")
        return RequestError(message, "response_format")

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def _refuse_with_beams(self) -> None:
        for name in NOT_WITH_BEAMS:
            value = getattr(self, name, None)
            if value and value != NEUTRAL.get(name):
                raise RequestError(f"{name} does not go with use_beam_search.", name)


class ChatRequest(GenerationRequest):
    messages: Many[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: Many[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool = True
    thinking_token_budget: int | None = Field(default=None, ge=0, le=MAX_BUDGET)
    documents: Many[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    echo: bool = False
    return_prompt_text: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs=true")
        if (
            self.continue_final_message
            and self.add_generation_prompt
            and "add_generation_prompt" in self.model_fields_set
        ):
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        return self

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if self.tools is not None and not self.tools:
            raise RequestError("tools must not be empty.", "tools")


class CompletionRequest(GenerationRequest):
    prompt: str | Many[str] | Many[int] | Many[Many[int]]
    suffix: str | None = None
    echo: bool = False
    logprobs: int | None = None
    add_special_tokens: bool = True
    best_of: int | None = None

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if self.suffix:
            raise RequestError("suffix is not supported.", "suffix")
        if self.best_of is not None and self.best_of != (self.n or 1):
            self._check_best_of(self.best_of)

    def _check_best_of(self, best_of: int) -> None:
        if self.use_beam_search:
            raise RequestError("best_of does not go with use_beam_search: n is the number of beams.", "best_of")
        if best_of < (self.n or 1):
            raise RequestError(f"best_of must be at least n={self.n or 1}, got {best_of}.", "best_of")
        if self.stream:
            raise RequestError("best_of above n cannot be streamed.", "best_of")


class TokenizeRequest(BaseModel):
    """Either a prompt or a chat."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    prompt: str | None = None
    messages: Many[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    tools: Many[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @model_validator(mode="after")
    def _one_of(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    tokens: Many[int]
