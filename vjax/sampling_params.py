"""`SamplingParams`: how the tokens of one request are chosen and when it stops. vLLM's names, defaults and ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from vjax.errors import RequestError
from vjax.structured_outputs import StructuredOutputsParams

GREEDY_BELOW = 1e-5  # temperatures under this mean argmax
LOWEST_TEMPERATURE = 0.01  # 0 < t < this is raised, as the softmax would overflow
MAX_N = 16384
MAX_BIASES = 1024
MAX_ALLOWED_IDS = 1024
MAX_STOP_IDS = 128
MAX_BAD_WORDS = 128
MAX_LOGPROB_IDS = 128
MAX_PATTERN = 4096  # tokens that `repetition_detection` may look back over

OutputKind = Literal["cumulative", "delta", "final_only"]


class RepetitionDetection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Ends a request whose last tokens are one pattern, of `min_pattern_size` to `max_pattern_size` tokens, at least
    `min_count` times in a row. A `max_pattern_size` of 0 turns it off."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 2

    def __post_init__(self) -> None:
        _integer(self.max_pattern_size, "repetition_detection.max_pattern_size", 0, MAX_PATTERN)
        _integer(self.min_pattern_size, "repetition_detection.min_pattern_size", 0, self.max_pattern_size)
        _integer(self.min_count, "repetition_detection.min_count", 2, MAX_PATTERN)
        if self.max_pattern_size * self.min_count > MAX_PATTERN:
            raise RequestError(
                f"repetition_detection may look back over {MAX_PATTERN} tokens, not max_pattern_size * min_count = "
                f"{self.max_pattern_size * self.min_count}.",
                "repetition_detection",
            )


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sampling options of a request. Fields and ranges are those of vLLM's class of the same name.

    Raises `RequestError` naming the field when a value is out of range.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None  # their logprobs instead of those of the likeliest tokens
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None  # which end a prompt loses; left by default
    repetition_detection: RepetitionDetection | None = None
    stream_interval: int = 1  # tokens between two outputs of kind delta
    output_kind: OutputKind = "cumulative"
    skip_reading_prefix_cache: bool | None = None
    extra_args: dict[str, Any] | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        self._normalise()
        self._check_ranges()
        self._check_lists()

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return tuple(self.stop) if isinstance(self.stop, list) else ()

    def _normalise(self) -> None:
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        if self.structured_outputs is not None and not isinstance(self.structured_outputs, StructuredOutputsParams):
            self.structured_outputs = StructuredOutputsParams.from_mapping(self.structured_outputs)
        if self.seed == -1:
            self.seed = None
        if self.top_k == -1:
            self.top_k = 0
        if self.logit_bias:
            self.logit_bias = {
                _token_id(k, "logit_bias"): min(100.0, max(-100.0, _finite(v, "logit_bias")))
                for k, v in self.logit_bias.items()
            }
        if self.logprob_token_ids:
            self.logprobs = 0
        if isinstance(self.repetition_detection, Mapping):
            self.repetition_detection = _repetition_detection(self.repetition_detection)
        if isinstance(self.temperature, (int, float)) and GREEDY_BELOW <= self.temperature < LOWEST_TEMPERATURE:
            self.temperature = LOWEST_TEMPERATURE
        if _is_number(self.temperature) and 0 <= self.temperature < GREEDY_BELOW:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0

    def _check_ranges(self) -> None:
        _integer(self.n, "n", 1, MAX_N)
        _real(self.presence_penalty, "presence_penalty", -2, 2)
        _real(self.frequency_penalty, "frequency_penalty", -2, 2)
        if _finite(self.repetition_penalty, "repetition_penalty") <= 0:
            raise RequestError(
                f"repetition_penalty must be greater than zero, got {self.repetition_penalty}.", "repetition_penalty"
            )
        _real(self.temperature, "temperature", 0, 2)
        if not 0 < _finite(self.top_p, "top_p") <= 1:
            raise RequestError(f"top_p must be in (0, 1], got {self.top_p}.", "top_p")
        _integer(self.top_k, "top_k", 0, 2**31 - 1)
        _real(self.min_p, "min_p", 0, 1)
        if self.seed is not None:
            _integer(self.seed, "seed", -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            _integer(self.max_tokens, "max_tokens", 1, 2**31 - 1)
        _integer(self.min_tokens, "min_tokens", 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must be at most max_tokens={self.max_tokens}, got {self.min_tokens}.", "min_tokens"
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _integer(value, name, -1, 2**31 - 1)
        if self.truncate_prompt_tokens is not None:
            _integer(self.truncate_prompt_tokens, "truncate_prompt_tokens", -1, 2**31 - 1)
            if self.truncate_prompt_tokens == 0:
                raise RequestError("truncate_prompt_tokens must be -1 or at least 1, got 0.", "truncate_prompt_tokens")
        if self.truncation_side not in (None, "left", "right"):
            raise RequestError(
                f"truncation_side must be left or right, got {self.truncation_side!r}.", "truncation_side"
            )  # fmt: skip
        _integer(self.stream_interval, "stream_interval", 1, 2**31 - 1)
        if self.greedy and self.n > 1:
            raise RequestError(f"n must be 1 when temperature is 0, got {self.n}.", "n")

    def _check_lists(self) -> None:
        for name in ("stop", "bad_words"):
            for text in _sequence(getattr(self, name), name):
                if not isinstance(text, str) or not text:
                    raise RequestError(f"{name} must hold non-empty strings, got {text!r}.", name)
        if self.stop and not self.detokenize:
            raise RequestError("stop strings need detokenize=True.", "stop")
        _ids(self.stop_token_ids, "stop_token_ids", MAX_STOP_IDS)
        _ids(self.allowed_token_ids, "allowed_token_ids", MAX_ALLOWED_IDS)
        _ids(self.logprob_token_ids, "logprob_token_ids", MAX_LOGPROB_IDS)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids must not be empty.", "allowed_token_ids")
        check_extra_args(self.extra_args)
        if len(self.bad_words or ()) > MAX_BAD_WORDS:
            raise RequestError(f"bad_words holds at most {MAX_BAD_WORDS} entries.", "bad_words")
        if len(self.logit_bias or ()) > MAX_BIASES:
            raise RequestError(f"logit_bias holds at most {MAX_BIASES} entries.", "logit_bias")

    def check_against(self, *, vocab_size: int, max_logprobs: int) -> None:
        """Refuse what depends on the model: ids outside the vocabulary, more logprobs than the engine returns."""
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias"):
            for token in getattr(self, name) or ():
                if not 0 <= token < vocab_size:
                    raise RequestError(f"{name} holds token id {token}, outside the vocabulary of {vocab_size}.", name)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is None or max_logprobs == -1:
                continue
            if value == -1 or value > max_logprobs:
                raise RequestError(f"{name}={value} is more than the engine's max_logprobs={max_logprobs}.", name)

    def clone(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, validated again."""
        return msgspec.structs.replace(self, **changes)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        unknown = set(values) - set(cls.__struct_fields__)
        if unknown:
            raise RequestError(f"unknown sampling parameter {sorted(unknown)[0]!r}.", sorted(unknown)[0])
        return cls(**values)


def check_extra_args(values: Any, name: str = "extra_args") -> None:
    """Refuse what cannot travel to the engine, such as integers of more than 64 bits."""
    if values is None:
        return
    try:
        msgspec.msgpack.encode(values)
    except (OverflowError, TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{name}: {error}.", name) from None


def _repetition_detection(values: Mapping[str, Any]) -> RepetitionDetection:
    try:
        return RepetitionDetection(**values)
    except TypeError:
        known = ", ".join(RepetitionDetection.__struct_fields__)
        raise RequestError(f"repetition_detection holds {known} only.", "repetition_detection") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _finite(value: Any, name: str) -> float:
    if not _is_number(value) or not math.isfinite(value):
        raise RequestError(f"{name} must be a finite number, got {value!r}.", name)
    return float(value)


def _real(value: Any, name: str, low: float, high: float) -> None:
    if not low <= _finite(value, name) <= high:
        raise RequestError(f"{name} must be in [{low:g}, {high:g}], got {value}.", name)


def _integer(value: Any, name: str, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"{name} must be an integer, got {value!r}.", name)
    if not low <= value <= high:
        raise RequestError(f"{name} must be in [{low}, {high}], got {value}.", name)


def _token_id(value: Any, name: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise RequestError(f"{name} keys must be token ids, got {value!r}.", name) from None


def _sequence(value: Any, name: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise RequestError(f"{name} must be a list, got {type(value).__name__}.", name)
    return value


def _ids(value: Any, name: str, most: int) -> None:
    ids = _sequence(value, name)
    if len(ids) > most:
        raise RequestError(f"{name} holds at most {most} entries, got {len(ids)}.", name)
    for token in ids:
        _integer(token, name, 0, 2**31 - 1)
