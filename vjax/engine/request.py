"""One sequence inside the engine: its tokens, and how far the scheduler has come with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from vjax.engine.grammar import Grammar
from vjax.engine.messages import EngineRequest
from vjax.sampling_params import SamplingParams


class Status(IntEnum):
    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    UNREADY = 3  # its grammar is being compiled


@dataclass(slots=True, eq=False)
class Request:
    """The scheduler owns the fields below `order`; everybody else reads them.

    `limit`: tokens that the whole sequence may reach. `stops`: token id -> the stop reason to report for it.
    `order`: the place in both queues, lower is served first and preempted last.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    eos_token_ids: list[int]
    bad_word_ids: list[list[int]]
    priority: int
    arrival_time: float
    cache_salt: str | None
    extra_keys: tuple[str, ...]
    seed: int
    limit: int
    stops: dict[int, int | None]
    order: tuple[float, ...]
    grammar: Grammar | None = None

    output_token_ids: list[int] = field(default_factory=list)  # known to the host
    num_inflight: int = 0  # sampled by dispatched steps, not read yet
    num_tokens: int = 0  # prompt, known outputs and those in flight
    num_computed: int = 0  # tokens whose keys and values are, or are being, computed
    decoding: bool = False  # the device holds the next input token
    slot: int | None = None
    pages: list[int] = field(default_factory=list)  # one of each group for the first tokens, then for the next; 0: none
    page_hashes: list[bytes] = field(default_factory=list)  # chained, of full pages; may lag behind
    num_shared: int = 0  # leading pages of each group that the prefix cache knows
    snapshot_after: list[int] = field(default_factory=list)  # numbers of pages, descending; chunks end there
    status: Status = Status.WAITING
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    num_preemptions: int = 0
    num_cached_tokens: int = 0  # found in the prefix cache when it last got its slot
    num_prompt_cached: int = 0  # the same, the first time: what the caller is told
    num_prompt_logprobs: int = 0  # prompt positions reported so far
    scheduled_time: float | None = None  # monotonic, seconds

    @classmethod
    def make(
        cls, message: EngineRequest, *, seed: int, max_model_len: int, order: tuple[float, ...],
        grammar: Grammar | None = None,
    ) -> Request:  # fmt: skip
        """`seed` is used if the message brings none."""
        params, prompt = message.params, message.prompt_token_ids
        limit = max_model_len if params.max_tokens is None else min(max_model_len, len(prompt) + params.max_tokens)
        stops: dict[int, int | None] = {token: token for token in params.stop_token_ids or ()}
        if not params.ignore_eos:
            stops |= dict.fromkeys(message.eos_token_ids)
        return cls(
            request_id=message.request_id,
            prompt_token_ids=prompt,
            params=params,
            eos_token_ids=message.eos_token_ids,
            bad_word_ids=message.bad_word_ids,
            priority=message.priority,
            arrival_time=message.arrival_time,
            cache_salt=message.cache_salt,
            extra_keys=tuple(message.extra_keys),
            seed=seed if params.seed is None else params.seed,
            limit=limit,
            stops=stops,
            order=order,
            grammar=grammar,
            num_tokens=len(prompt),
        )

    @property
    def num_known(self) -> int:
        """Tokens whose ids the host knows."""
        return self.num_tokens - self.num_inflight

    @property
    def all_token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.output_token_ids

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Known token ids at positions `start .. stop - 1`, without building the whole list."""
        prompt, n = self.prompt_token_ids, len(self.prompt_token_ids)
        if stop <= n:
            return prompt[start:stop]
        if start >= n:
            return self.output_token_ids[start - n : stop - n]
        return prompt[start:] + self.output_token_ids[: stop - n]
