"""From a caller's prompt to validated engine requests."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vjax.engine.messages import EngineLimits, EngineRequest
from vjax.errors import RequestError
from vjax.frontend.beam_search import BeamSearchParams
from vjax.frontend.grammars import Grammars
from vjax.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vjax.tokenizing.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a mapping with `prompt` and/or `prompt_token_ids`, and maybe `cache_salt`."""

MAX_SALT_CHARS = 1024
PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}


@dataclass(slots=True)
class PreparedRequest:
    """A request that passed every check. `children` are its `n` continuations, which the engine knows by their own
    ids: `request_id` itself when `n` is 1, else `{request_id}_{index}`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    children: list[EngineRequest]
    arrival_time: float
    shown_special_ids: frozenset[int] = frozenset()  # special tokens whose text is wanted, whatever `params` say
    beam: BeamSearchParams | None = None  # then `params` and `children` only say what its steps have in common


class InputProcessor:
    """Tokenises and validates prompts. Thread-safe: it holds no state of a request.

    `strict_length` refuses `max_tokens` for which the context has no room, as the server does; otherwise the output
    is cut there, as offline.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        limits: EngineLimits,
        *,
        eos_token_ids: Sequence[int] = (),
        strict_length: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.limits = limits
        self.strict_length = strict_length
        own = tokenizer.eos_token_ids if tokenizer is not None else ()
        self.eos_token_ids = list(dict.fromkeys([*own, *limits.eos_token_ids, *eos_token_ids]))
        self.grammars = Grammars(tokenizer, limits.vocab_size, self.eos_token_ids)

    def process(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        prompt_text: str | None = None,
        add_special_tokens: bool = True,
        arrival_time: float | None = None,
    ) -> PreparedRequest:
        """Raises `RequestError` naming the field for anything that the engine could not serve.

        `prompt_text` is shown as the prompt when ids are given. Special tokens are added to text only.
        """
        arrival_time = time.monotonic() if arrival_time is None else arrival_time
        params.check_against(vocab_size=self.limits.vocab_size, max_logprobs=self.limits.max_logprobs)
        if params.stop and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer; this engine runs without one.", "stop")
        if params.structured_outputs is not None:
            self.grammars.check(params.structured_outputs)
        text, ids, salt = split_prompt(prompt)
        cache_salt = check_salt(cache_salt if cache_salt is not None else salt)
        if type(priority) is not int or not -(2**31) <= priority < 2**31:
            raise RequestError(f"priority must be a 32-bit integer, got {priority!r}.", "priority")
        if ids is None:
            assert text is not None
            ids = self._encode(text, params, add_special_tokens)
        ids = self._truncate(check_ids(ids, self.limits.vocab_size), params)
        params = self._fit(len(ids), params)
        template = EngineRequest(
            request_id=request_id,
            prompt_token_ids=ids,
            params=params,
            eos_token_ids=self.eos_token_ids,
            bad_word_ids=self._bad_word_ids(params.bad_words or ()),
            priority=priority,
            arrival_time=arrival_time,
            cache_salt=cache_salt,
        )
        shown = prompt_text if prompt_text is not None else text
        return PreparedRequest(request_id, shown, ids, params, split_children(template), arrival_time)

    def _encode(self, text: str, params: SamplingParams, add_special_tokens: bool) -> list[int]:
        if self.tokenizer is None:
            raise RequestError("this engine runs without a tokenizer: give prompt_token_ids.", "prompt")
        check_text(text)
        if len(text) > self.limits.max_model_len:  # else even one token a character fits
            text = self._cut(text, params)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _cut(self, text: str, params: SamplingParams) -> str:
        """Refuse, before the work of tokenising it, text that no tokenisation fits into the context. Text that will
        be truncated anyway loses its head or its tail, but for twice what can remain."""
        assert self.tokenizer is not None
        longest = self.tokenizer.max_token_length
        if params.truncate_prompt_tokens is not None:
            most = 2 * longest * self._max_input(params)
            return text[:most] if params.truncation_side == "right" else text[-most:]
        most = self.limits.max_model_len * longest
        if len(text) > most:
            raise RequestError(
                f"the prompt has {len(text)} characters; the context of {self.limits.max_model_len} tokens holds at "
                f"most {most}.",
                "input_text",
            )
        return text

    def _max_input(self, params: SamplingParams) -> int:
        return max(1, self.limits.max_model_len - (params.max_tokens or 1))

    def _truncate(self, ids: list[int], params: SamplingParams) -> list[int]:
        keep = params.truncate_prompt_tokens
        if keep is None:
            return ids
        most = self._max_input(params)
        if keep > most:
            raise RequestError(
                f"truncate_prompt_tokens={keep} is more than the {most} tokens that the context of "
                f"{self.limits.max_model_len} leaves for a prompt.",
                "truncate_prompt_tokens",
            )
        keep = most if keep == -1 else keep
        return ids[:keep] if params.truncation_side == "right" else ids[-keep:]

    def _fit(self, length: int, params: SamplingParams) -> SamplingParams:
        """`max_tokens` filled in or cut to what the context leaves."""
        context, wanted = self.limits.max_model_len, params.max_tokens
        if self.strict_length and wanted is not None and wanted > context:
            raise RequestError(f"max_tokens={wanted} is more than the model's context of {context}.", "max_tokens")
        room = context - length
        if room < 1 or (self.strict_length and wanted is not None and wanted > room):
            raise RequestError(
                f"the model's context is {context} tokens, but {length + (wanted or 1)} were asked for: {length} in "
                f"the prompt and {wanted or 1} for the output. Shorten the prompt or lower max_tokens.",
                "input_tokens",
            )
        return params if wanted is not None and wanted <= room else params.clone(max_tokens=room)

    def _bad_word_ids(self, words: Sequence[str]) -> list[list[int]]:
        """Each word at the start of a text, and after a space where that only changes its first token."""
        if words and self.tokenizer is None:
            raise RequestError("bad_words need a tokenizer; this engine runs without one.", "bad_words")
        found: list[list[int]] = []
        for word in words:
            assert self.tokenizer is not None
            check_text(word, "bad_words")
            bare = self.tokenizer.encode(word.lstrip(), add_special_tokens=False)
            spaced = self.tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
            if not bare:
                raise RequestError(f"bad_words holds {word!r}, which has no tokens.", "bad_words")
            found.append(bare)
            if len(spaced) == len(bare) and spaced[0] != bare[0]:
                found.append(spaced)
        return found


def split_prompt(prompt: Prompt) -> tuple[str | None, Sequence[int] | None, str | None]:
    """Text, ids and cache salt; text or ids are present."""
    if isinstance(prompt, str):
        return prompt, None, None
    if not isinstance(prompt, Mapping):
        return None, prompt, None
    if unknown := sorted(str(key) for key in set(prompt) - PROMPT_KEYS):
        raise RequestError(f"unknown prompt key {unknown[0]!r}; known: {', '.join(sorted(PROMPT_KEYS))}.", "prompt")
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is not None and not isinstance(text, str):
        raise RequestError(f"prompt must be text, got {type(text).__name__}.", "prompt")
    if text is None and ids is None:
        raise RequestError("a prompt needs `prompt` or `prompt_token_ids`.", "prompt")
    return text, ids, prompt.get("cache_salt")


def check_text(text: str, param: str = "prompt") -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} holds the lone surrogate \\u{ord(text[error.start]):04x} at character {error.start}, which is "
            "not valid Unicode.",
            param,
        ) from None


def check_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    """A list of plain ints in the vocabulary; numpy's integers are converted."""
    if isinstance(ids, (str, bytes)) or not hasattr(ids, "__iter__"):
        raise RequestError(f"a prompt must be text or token ids, got {type(ids).__name__}.", "prompt")
    result = list(ids)
    if not result:
        raise RequestError("the prompt is empty.", "prompt")
    if any(type(token) is not int for token in result):
        result = [_plain_int(token) for token in result]
    for bad in (min(result), max(result)):
        if not 0 <= bad < vocab_size:
            raise RequestError(f"token id {bad} is outside the vocabulary of {vocab_size}.", "prompt_token_ids")
    return result


def _plain_int(token: Any) -> int:
    if isinstance(token, bool) or not hasattr(token, "__index__"):
        raise RequestError(f"token ids must be integers, got {token!r}.", "prompt_token_ids")
    try:
        return int(token.__index__())
    except TypeError:  # an array of more than one number
        raise RequestError(f"token ids must be integers, got {token!r}.", "prompt_token_ids") from None


def check_salt(salt: Any) -> str | None:
    if salt is None:
        return None
    if not isinstance(salt, str) or not 0 < len(salt) <= MAX_SALT_CHARS:
        raise RequestError(f"cache_salt must be a string of 1 to {MAX_SALT_CHARS} characters.", "cache_salt")
    check_text(salt, "cache_salt")
    return salt


def split_children(template: EngineRequest) -> list[EngineRequest]:
    """One engine request for each of the `n` continuations, seeded apart. Only the first scores the prompt."""
    params, children = template.params, []
    if params.n == 1:
        return [template]
    for index in range(params.n):
        seed = None if params.seed is None else (params.seed + index + 2**63) % 2**64 - 2**63
        own = params.clone(n=1, seed=seed, prompt_logprobs=params.prompt_logprobs if index == 0 else None)
        child = EngineRequest(
            request_id=f"{template.request_id}_{index}",
            prompt_token_ids=template.prompt_token_ids,
            params=own,
            eos_token_ids=template.eos_token_ids,
            bad_word_ids=template.bad_word_ids,
            priority=template.priority,
            arrival_time=template.arrival_time,
            cache_salt=template.cache_salt,
            extra_keys=template.extra_keys,
        )
        children.append(child)
    return children
