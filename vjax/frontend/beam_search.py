"""Beam search, above the engine: each step asks for one token after every live beam, with the logprobs of the
likeliest. Beams share their pages through the prefix cache."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vjax.errors import RequestError
from vjax.outputs import FinishReason, LogprobDict
from vjax.sampling_params import SamplingParams

MAX_WIDTH = 256


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """`beam_width` beams of at most `max_tokens` new tokens. A sequence scores the sum of its logprobs over its length
    (prompt included, end token not) to the power of `length_penalty`: above 1 favours long ones.

    Raises `RequestError` naming the field.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    temperature: float = 0.0  # accepted for vLLM's sake: scores are those of the model

    def __post_init__(self) -> None:
        for name, most in (("beam_width", MAX_WIDTH), ("max_tokens", 2**31 - 1)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise RequestError(f"{name} must be in [1, {most}], got {value!r}.", name)
        if type(self.length_penalty) not in (int, float) or not -10 <= self.length_penalty <= 10:
            raise RequestError(f"length_penalty must be in [-10, 10], got {self.length_penalty!r}.", "length_penalty")

    def step_params(self) -> SamplingParams:
        """Those of each engine request."""
        return SamplingParams(
            temperature=0.0, max_tokens=1, logprobs=2 * self.beam_width, ignore_eos=True, detokenize=False,
            output_kind="final_only",
        )  # fmt: skip

    def check_against(self, max_logprobs: int) -> None:
        if max_logprobs != -1 and 2 * self.beam_width > max_logprobs:
            raise RequestError(
                f"a beam width of {self.beam_width} needs {2 * self.beam_width} logprobs a step; the engine gives "
                f"max_logprobs={max_logprobs}.",
                "beam_width",
            )


@dataclass(slots=True)
class BeamSearchSequence:
    """`tokens`: prompt and output. `text`: of the output."""

    tokens: list[int]
    cum_logprob: float = 0.0
    logprobs: list[LogprobDict] = field(default_factory=list)
    text: str | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The best sequences, the best first."""

    sequences: list[BeamSearchSequence]


_Candidate = tuple[float, BeamSearchSequence, int, LogprobDict]
"""A beam and a token after it: the sum of logprobs of both, the beam, the token, and the row it comes from."""


def _best(candidates: list[_Candidate], count: int) -> list[_Candidate]:
    return heapq.nlargest(count, candidates, key=lambda one: one[0])


def _extended(candidate: _Candidate, finish_reason: FinishReason | None = None) -> BeamSearchSequence:
    total, beam, token, row = candidate
    return BeamSearchSequence([*beam.tokens, token], total, [*beam.logprobs, row], finish_reason=finish_reason)


class Beams:
    """The search for one prompt. While `live`, ask for one token after each of them and `advance`."""

    def __init__(self, prompt: Sequence[int], params: BeamSearchParams, eos_token_ids: Iterable[int]) -> None:
        self.prompt, self.params = list(prompt), params
        self.eos = frozenset(() if params.ignore_eos else eos_token_ids)
        self.live = [BeamSearchSequence(self.prompt)]
        self.done: list[BeamSearchSequence] = []  # the best `beam_width` that ended
        self._all_eos = frozenset(eos_token_ids)

    @property
    def steps(self) -> int:
        """Tokens that the live beams have."""
        return len(self.live[0].tokens) - len(self.prompt) if self.live else self.params.max_tokens

    def advance(self, rows: Sequence[LogprobDict]) -> None:
        """Take in what may follow each live beam, in their order."""
        going: list[_Candidate] = []
        ended: list[_Candidate] = []
        for beam, row in zip(self.live, rows, strict=True):
            for token, entry in row.items():
                kind = ended if token in self.eos else going
                kind.append((beam.cum_logprob + entry.logprob, beam, token, row))
        width = self.params.beam_width
        # Those that ended now are equally long, so that their sums rank them.
        self.done += [_extended(one, "stop") for one in _best(ended, width)]
        self.live = [_extended(one) for one in _best(going, width)]
        self.done = sorted(self.done, key=self._rank)[:width]
        if self.steps >= self.params.max_tokens or self._settled():
            self._end()

    def best(self) -> list[BeamSearchSequence]:
        return sorted(self.done, key=self._rank)[: self.params.beam_width]

    def close(self, reason: FinishReason) -> None:
        """End the live beams as they are."""
        self._end(reason)

    def output_ids(self, sequence: BeamSearchSequence) -> list[int]:
        return sequence.tokens[len(self.prompt) :]

    def text_ids(self, sequence: BeamSearchSequence) -> list[int]:
        """The output without the end token, unless it is wanted."""
        ids = self.output_ids(sequence)
        hidden = sequence.finish_reason == "stop" and not self.params.include_stop_str_in_output
        return ids[:-1] if hidden else ids

    def score(self, cum_logprob: float, length: int) -> float:
        score: float = cum_logprob / max(length, 1) ** self.params.length_penalty
        return score

    def _rank(self, sequence: BeamSearchSequence) -> float:
        length = len(sequence.tokens) - (sequence.tokens[-1] in self._all_eos)
        return -self.score(sequence.cum_logprob, length)

    def _settled(self) -> bool:
        """Whether no live beam can still beat those that ended: sums of logprobs only fall."""
        if len(self.done) < self.params.beam_width or not self.live:
            return not self.live
        best, length = self.live[0].cum_logprob, len(self.live[0].tokens)
        most = len(self.prompt) + self.params.max_tokens
        return -self._rank(self.done[-1]) > max(self.score(best, length), self.score(best, most))

    def _end(self, reason: FinishReason = "length") -> None:
        for beam in self.live:
            beam.finish_reason = reason
        self.done += self.live
        self.live = []
