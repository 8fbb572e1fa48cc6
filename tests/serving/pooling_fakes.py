"""Engines without a model that encode: what they say of a text is how often each of some letters is in it."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tests.frontend.fakes import EOS
from vjax.config import EngineConfig
from vjax.engine.messages import EngineLimits, EngineOutput, EngineStats, Pooled, PoolingLimits, PoolRequest
from vjax.errors import RequestError

CONTEXT = 40
LETTERS = b"abcd"


def counts(tokens: Iterable[int]) -> list[float]:
    held = list(tokens)
    return [float(held.count(letter)) for letter in LETTERS]


class Embedder:
    """`!fail` and `!refuse` misbehave, `!wait` is never done. Nothing is normalised."""

    pooling = PoolingLimits(["embed", "token_embed"], width=len(LETTERS), normalizes=False, cut=True, sizes=[2, 3])

    def __init__(self, config: EngineConfig) -> None:
        self.limits = EngineLimits(
            max_model_len=CONTEXT, vocab_size=EOS + 1, max_logprobs=0, max_num_seqs=8, num_pages=0, block_size=16,
            pooling=self.pooling,
        )  # fmt: skip
        self.waiting: dict[str, PoolRequest] = {}
        self.aborted = self.tokens = 0

    @property
    def has_work(self) -> bool:
        return any(not self.text(request).startswith(b"!wait") for request in self.waiting.values())

    def add(self, request: PoolRequest) -> None:
        if self.text(request) == b"!refuse":
            raise RequestError("refused by the fake.")
        self.waiting[request.request_id] = request

    def abort(self, request_ids: Iterable[str]) -> None:
        self.aborted += sum(self.waiting.pop(one, None) is not None for one in request_ids)

    def step(self) -> list[EngineOutput]:
        ready = [request for request in self.waiting.values() if not self.text(request).startswith(b"!wait")]
        return [self._one(self.waiting.pop(request.request_id)) for request in ready]

    def values(self, request: PoolRequest) -> tuple[list[float], tuple[int, ...]]:
        if request.task == "token_embed":
            rows = [counts([token]) for token in request.prompt_token_ids]
            return [value for row in rows for value in row], (len(rows), len(LETTERS))
        found = counts(request.prompt_token_ids)[: request.dimensions]
        return found, (len(found),)

    def _one(self, request: PoolRequest) -> EngineOutput:
        if self.text(request) == b"!fail":
            return EngineOutput(request.request_id, [], finish_reason="error", error="no luck")
        self.tokens += len(request.prompt_token_ids)
        found, shape = self.values(request)
        pooled = Pooled(shape, struct.pack(f"={len(found)}f", *found))
        return EngineOutput(request.request_id, [], finish_reason="stop", scheduled_time=0.0, pooled=pooled)

    @staticmethod
    def text(request: PoolRequest) -> bytes:
        return bytes(token & 255 for token in request.prompt_token_ids)

    def stats(self) -> EngineStats:
        aborted = self.aborted  # shown as preemptions, of which this engine has none
        return EngineStats(waiting=len(self.waiting), prompt_tokens=self.tokens, preemptions=aborted)

    def reset_prefix_cache(self) -> bool:
        return True

    def shutdown(self) -> None:
        pass


class Reranker(Embedder):
    """One label: the share of letters in a pair that are `a`."""

    pooling = PoolingLimits(["classify", "token_embed"], width=len(LETTERS), labels=["relevant"])

    def values(self, request: PoolRequest) -> tuple[list[float], tuple[int, ...]]:
        return [request.prompt_token_ids.count(LETTERS[0]) / len(request.prompt_token_ids)], (1,)


class Classifier(Embedder):
    """A label for each letter."""

    pooling = PoolingLimits(["classify", "token_embed"], width=len(LETTERS), labels=list("abcd"))
