"""Texts that wait to be encoded, by the length that they are padded to. Host only."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from typing import Literal

from vjax.engine.messages import PoolRequest

SHORTEST = 16  # tokens a text is padded to at least
TASKS_APART: Literal["token_embed"] = "token_embed"  # answers of another size, from a graph of its own

Bucket = tuple[bool, int]  # whether all tokens are wanted; the length


class PoolBuckets:
    """Shapes of batches: lengths are powers of two, numbers of rows powers of four, so that there are few."""

    def __init__(self, longest: int, tokens: int) -> None:
        """`longest`: tokens of a text; `tokens`: of a batch, padding included, unless it is one text."""
        self.lengths = [n for n in (SHORTEST << i for i in range(32)) if n < longest]
        self.lengths.append(max(longest, SHORTEST) if longest >= SHORTEST else SHORTEST)
        self._tokens = tokens

    def length(self, tokens: int) -> int:
        return next(length for length in self.lengths if length >= tokens)

    def rows(self, length: int) -> list[int]:
        most = max(1, self._tokens // length)
        return [*(n for n in (4**i for i in range(16)) if n < most), most]

    def shape(self, count: int, length: int) -> tuple[int, int]:
        """Rows and length of a batch of `count` texts."""
        return next(rows for rows in self.rows(length) if rows >= count), length

    def shapes(self) -> list[tuple[int, int]]:
        return [(rows, length) for length in self.lengths for rows in self.rows(length)]


class PoolQueue:
    """The oldest text goes first (or the one of the lowest `priority`), with others of about its length."""

    def __init__(self, buckets: PoolBuckets, by_priority: bool = False) -> None:
        self.buckets, self._by_priority = buckets, by_priority
        self._waiting: dict[Bucket, list[tuple[int, int, PoolRequest]]] = {}
        self._live: set[str] = set()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._live)

    def add(self, request: PoolRequest) -> None:
        bucket = (request.task == TASKS_APART, self.buckets.length(len(request.prompt_token_ids)))
        rank = request.priority if self._by_priority else 0
        heapq.heappush(self._waiting.setdefault(bucket, []), (rank, next(self._numbers), request))
        self._live.add(request.request_id)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests, lazily: their places in the heaps are skipped."""
        self._live.difference_update(request_ids)

    def take(self) -> tuple[list[PoolRequest], tuple[int, int]] | None:
        """A batch and its shape, rows and length; None when nothing waits."""
        heads = {bucket: head[:2] for bucket, heap in self._waiting.items() if (head := self._head(heap)) is not None}
        self._waiting = {bucket: heap for bucket, heap in self._waiting.items() if heap}
        if not heads:
            return None
        bucket = min(heads, key=heads.__getitem__)
        heap, most = self._waiting[bucket], self.buckets.rows(bucket[1])[-1]
        batch: list[PoolRequest] = []
        while len(batch) < most and self._head(heap) is not None:
            request = heapq.heappop(heap)[2]
            self._live.discard(request.request_id)
            batch.append(request)
        return batch, self.buckets.shape(len(batch), bucket[1])

    def _head(self, heap: list[tuple[int, int, PoolRequest]]) -> tuple[int, int, PoolRequest] | None:
        while heap and heap[0][2].request_id not in self._live:
            heapq.heappop(heap)
        return heap[0] if heap else None
