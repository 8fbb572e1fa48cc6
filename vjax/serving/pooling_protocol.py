"""Requests to models that encode. Unknown fields are accepted and ignored."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vjax.errors import RequestError
from vjax.pooling_params import PoolingParams
from vjax.serving.protocol import Many

MAX_INPUTS = 4096  # texts in a request
OLD = ("normalize", "activation", "softmax")  # what use_activation was called

Message = dict[str, Any]


class PoolingFields(BaseModel):
    """What all of them may say. None means: as the model's files say."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    user: str | None = None
    request_id: str | None = None
    priority: int = 0
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_old_names(cls, values: Any) -> Any:
        if isinstance(values, dict) and (found := [name for name in OLD if values.get(name) is not None]):
            raise ValueError(f"{found[0]} is called use_activation now")
        return values

    def params(self, **changes: Any) -> PoolingParams:
        return PoolingParams(
            use_activation=self.use_activation,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            truncation_side=self.truncation_side,
            **changes,
        )


class InputRequest(PoolingFields):
    """Texts, or conversations that the chat template makes texts of."""

    input: str | Many[str] | Many[int] | Many[Many[int]] | None = None
    messages: Many[Message] | Many[Many[Message]] | None = None
    add_special_tokens: bool | None = None  # to texts, unless it says otherwise; templates write their own
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def tools(self) -> None:
        """Templates are shown none."""

    @model_validator(mode="after")
    def _one_of(self) -> InputRequest:
        if (self.input is None) == (self.messages is None):
            raise ValueError("give either input or messages")
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        return self

    def inputs(self) -> list[str | list[int]]:
        """A list, whatever was sent. Raises `RequestError`."""
        found: Any = self.input
        if isinstance(found, str):
            return [found]
        if not found:
            raise RequestError("input must not be empty.", "input")
        return check_count([found] if isinstance(found[0], int) else list(found), "input")

    def conversations(self) -> list[list[Message]]:
        found: Any = self.messages
        if not found:
            raise RequestError("messages must not be empty.", "messages")
        return check_count([found] if isinstance(found[0], dict) else list(found), "messages")


class EmbeddingRequest(InputRequest):
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"
    embed_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    endianness: Literal["native", "little", "big"] = "native"


class PoolingRequest(EmbeddingRequest):
    task: str | None = None


class ClassifyRequest(InputRequest):
    pass


class PairFields(PoolingFields):
    max_tokens_per_query: int | None = Field(default=None, ge=1)
    max_tokens_per_doc: int | None = Field(default=None, ge=1)
    instruction: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ScoreRequest(PairFields):
    """One text with each of a list, or two lists in step; under any of four pairs of names."""

    data_1: str | Many[str] | None = None
    data_2: str | Many[str] | None = None
    text_1: str | Many[str] | None = None
    text_2: str | Many[str] | None = None
    queries: str | Many[str] | None = None
    documents: str | Many[str] | None = None
    items: str | Many[str] | None = None

    def texts(self) -> tuple[list[str], list[str], tuple[str, str]]:
        """Both sides, and what they are called. Raises `RequestError`."""
        for names in (("data_1", "data_2"), ("queries", "documents"), ("queries", "items"), ("text_1", "text_2")):
            first, second = (getattr(self, name) for name in names)
            if first is not None and second is not None:
                return (*(check_count([v] if isinstance(v, str) else v, n) for v, n in ((first, names[0]),
                        (second, names[1]))), names)  # type: ignore[return-value]  # fmt: skip
        raise RequestError("give queries and documents (or data_1 and data_2, or text_1 and text_2).", "queries")


class RerankRequest(PairFields):
    query: str
    documents: Many[str]
    top_n: int = Field(default=0, ge=0)  # 0: all


def check_count(found: list[Any], name: str) -> list[Any]:
    if not found:
        raise RequestError(f"{name} must not be empty.", name)
    if len(found) > MAX_INPUTS:
        raise RequestError(f"{name} may hold at most {MAX_INPUTS} entries, got {len(found)}.", name)
    return found
