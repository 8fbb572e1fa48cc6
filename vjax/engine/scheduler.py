"""Decides what every step computes: who runs, how many of their tokens, in which pages.

The engine asks for step n + 1 before it has read step n, so a plan may contain tokens that only the device knows: their
positions are certain, their ids are not. Whatever `update` learns late (a request had ended, was aborted or preempted)
costs at most one useless row. Its pages and its slot are free at once all the same: the device runs steps in order, so
the useless row writes before any later step that was given those pages or that slot, and the later one writes over it
before it reads.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Literal

from msgspec.structs import replace

from vjax.engine.grammar import Grammar
from vjax.engine.messages import STEP_SIZES, EngineOutput, EngineRequest, EngineStats, TokenLogprobs
from vjax.engine.page_groups import PageGroups
from vjax.engine.pages import PagePool
from vjax.engine.prefix_cache import PrefixCache
from vjax.engine.repetition import repeats
from vjax.engine.request import Request, Status
from vjax.errors import RequestError

ORDER = attrgetter("order")


@dataclass(slots=True)
class Row:
    """`count` consecutive tokens of one request, from position `start`; `sample`: what follows the last is sampled."""

    request: Request
    start: int
    count: int
    sample: bool
    slot: int


@dataclass(slots=True)
class Plan:
    """One step. Rows that continue from the device's own token come first (`num_decode` of them).

    `page_updates`: (slot, index, page) entries of page tables that are new in this step, each (slot, index) once;
    indices count in `Request.pages`.
    `admitted`: got their slot in this step. `restored`: (snapshot, slot) of states to copy before the step, `saved`:
    (slot, snapshot) to copy after it.
    """

    rows: list[Row]
    page_updates: list[tuple[int, int, int]]
    admitted: list[Request]
    preempted: list[Request]
    num_tokens: int
    num_decode: int
    restored: list[tuple[int, int]] = field(default_factory=list)
    saved: list[tuple[int, int]] = field(default_factory=list)

    @property
    def decode_only(self) -> bool:
        return self.num_decode == len(self.rows)


class Scheduler:
    """Both queues are sorted by `Request.order`: arrival under `fcfs`, priority first under `priority`.

    `windows`: of the groups of layers that have pages of their own (`page_groups`).
    `snapshots`: room for states of recurrent layers, without which a prefix is of no use to them; 0: no such layers.
    `watermark`: share of pages to leave free when admitting beside running requests, which will need some soon.
    `seed` seeds the requests that bring none; None: from the system.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        num_slots: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        windows: tuple[int | None, ...] = (None,),
        enable_prefix_caching: bool = True,
        snapshots: int = 0,
        policy: Literal["fcfs", "priority"] = "fcfs",
        long_prefill_token_threshold: int = 0,
        watermark: float = 0.01,
        seed: int | None = None,
    ) -> None:
        if max_num_batched_tokens < num_slots:
            raise ValueError(f"max_num_batched_tokens={max_num_batched_tokens} is less than num_slots={num_slots}")
        self.page_size, self.max_model_len = page_size, max_model_len
        self.groups = PageGroups(windows, page_size)
        self._windows = [(group, window) for group, window in enumerate(windows) if window is not None]
        self.budget = max_num_batched_tokens
        self.chunk = min(long_prefill_token_threshold or max_num_batched_tokens, max_num_batched_tokens)
        self.by_priority = policy == "priority"
        self.pool = PagePool(num_pages)
        self.cache = PrefixCache(self.pool, self.groups, snapshots) if enable_prefix_caching else None
        self.snapshots = self.cache.snapshots if self.cache is not None else None
        if self.snapshots is not None and self._windows:
            raise ValueError("snapshots go with layers that see everything")
        self.reserve = int(watermark * self.pool.capacity)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.unready: list[Request] = []  # with a grammar that is being compiled; they keep their place
        self._requests: dict[str, Request] = {}
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._arrivals = count()
        self._random = random.Random(seed)
        self._outputs: list[EngineOutput] = []
        self._blocked: tuple[Request | None, int] = (None, 0)
        self._stats = EngineStats(step_sizes=[0] * (len(STEP_SIZES) + 1))

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self.unready or self._outputs)

    def add(self, message: EngineRequest, grammar: Grammar | None = None) -> None:
        """Queue a request; one with a grammar waits until that is ready. One that can never run is answered with an
        error by `take_outputs`."""
        if message.request_id in self._requests:
            raise RequestError(f"request id {message.request_id!r} is in use.", "request_id")
        arrival = next(self._arrivals)
        order = (message.priority, message.arrival_time, arrival) if self.by_priority else (arrival,)
        request = Request.make(
            message,
            seed=self._random.getrandbits(63),
            max_model_len=self.max_model_len,
            order=order,
            grammar=grammar,
        )
        error = self._refusal(request)
        if error is not None:
            self._refuse(request, error)
            return
        self._requests[request.request_id] = request
        if grammar is not None:
            request.status = Status.UNREADY
        insort(self.waiting if grammar is None else self.unready, request, key=ORDER)

    def abort(self, request_id: str) -> None:
        """Forget a request, at any moment and without an output. Unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, "abort")

    @property
    def has_outputs(self) -> bool:
        return bool(self._outputs)

    def take_outputs(self) -> list[EngineOutput]:
        """News that no step brings: refused requests."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def put_back(self, outputs: list[EngineOutput]) -> None:
        """Have the next `take_outputs` give these."""
        self._outputs += outputs

    def preempt_all(self) -> None:
        """Send every running request back to waiting. No step may be in flight."""
        plan = Plan([], [], [], [], 0, 0)
        while self.running:
            self._preempt(self.running[-1], plan)
        self._blocked = None, 0

    def plan(self) -> Plan | None:
        """The next step; None if there is nothing to compute now."""
        plan = Plan([], [], [], [], 0, 0)
        if self.unready:
            self._take_ready()
        if self.snapshots is not None:
            self.snapshots.publish()
        prefilling = self._plan_decode(plan)
        plan.num_decode = plan.num_tokens = len(plan.rows)
        for request in prefilling:
            self._plan_chunk(request, plan)
        if not plan.preempted:
            self._admit(plan)
        if not plan.rows:
            return None
        self._stats.steps += 1
        self._stats.last_step_tokens = plan.num_tokens
        self._stats.step_tokens += plan.num_tokens
        self._stats.step_sizes[bisect_left(STEP_SIZES, plan.num_tokens)] += 1
        return plan

    def update(
        self,
        plan: Plan,
        sampled: Sequence[int],
        logprobs: Sequence[TokenLogprobs | None] | None = None,
        prompt_logprobs: Sequence[list[TokenLogprobs] | None] | None = None,
    ) -> list[EngineOutput]:
        """Take in what a step sampled, one entry a row. Plans must come in the order they were made."""
        outputs: list[EngineOutput] = []
        for index, row in enumerate(plan.rows):
            request = row.request
            if request.status is Status.FINISHED:
                continue
            scored = None if prompt_logprobs is None else self._new_prompt_logprobs(row, prompt_logprobs[index])
            new: list[int] = []
            new_logprobs = None
            if row.sample:
                new.append(sampled[index])
                self._accept(request, sampled[index])
                if logprobs is not None and (entry := logprobs[index]) is not None:
                    new_logprobs = [entry]
            elif scored is None:
                continue
            outputs.append(
                EngineOutput(
                    request.request_id,
                    new,
                    new_logprobs,
                    scored,
                    request.finish_reason,
                    request.stop_reason,
                    request.error,
                    request.num_prompt_cached,
                    request.scheduled_time,
                    request.num_preemptions,
                )
            )
        return outputs

    def stats(self) -> EngineStats:
        """Gauges now and counters so far."""
        return replace(
            self._stats,
            running=len(self.running),
            waiting=len(self.waiting) + len(self.unready),
            cache_usage=self.pool.usage,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget cached pages; False, and nothing forgotten, while requests hold some."""
        if self.pool.num_used:
            return False
        if self.cache is not None:
            self.cache.reset()
        return True

    # Planning.

    def _plan_decode(self, plan: Plan) -> list[Request]:
        """Rows of the requests that generate. Returns the running ones that do not, yet. There are never more rows
        than slots, so the budget holds them."""
        rows, size, groups, prefilling = plan.rows, self.page_size, len(self.groups), []
        for request in self.running:  # preemption only ever takes its end away
            if not request.decoding:
                prefilling.append(request)
                continue
            if request.num_tokens >= request.limit:
                continue  # the last token is in flight
            start = request.num_computed
            if start * groups >= len(request.pages) * size and not self._grow(request, 1, plan):
                break
            rows.append(Row(request, start, 1, True, request.slot))  # type: ignore[arg-type]
            request.num_computed = start + 1
            request.num_tokens += 1
            request.num_inflight += 1
        return prefilling

    def _plan_chunk(self, request: Request, plan: Plan) -> None:
        """The next chunk of a running request's prompt."""
        room = min(self.budget - plan.num_tokens, self.chunk)
        if room <= 0 or request.status is not Status.RUNNING:
            return
        start = request.num_computed
        tokens = min(request.num_tokens - start, room)
        if request.snapshot_after:
            tokens = min(tokens, request.snapshot_after[-1] * self.page_size - start)
        missing = -(-(start + tokens) // self.page_size) - len(request.pages) // len(self.groups)
        if missing > 0 and not self._grow(request, missing, plan):
            return
        sample = start + tokens == request.num_tokens
        assert request.slot is not None
        plan.rows.append(Row(request, start, tokens, sample, request.slot))
        plan.num_tokens += tokens
        request.num_computed = start + tokens
        if self.cache is not None and request.num_computed // self.page_size > request.num_shared:
            # At once, so that a neighbour admitted now shares them: each layer writes before any row reads it.
            self.cache.commit(request, request.num_computed // self.page_size)
        if request.snapshot_after and request.num_computed == request.snapshot_after[-1] * self.page_size:
            self._save(request, request.snapshot_after.pop(), plan)
        if sample:
            request.decoding = True
            request.num_tokens += 1
            request.num_inflight += 1

    def _save(self, request: Request, pages: int, plan: Plan) -> None:
        """Keep what recurrent layers carry after so many pages."""
        assert self.snapshots is not None
        assert request.slot is not None
        place = self.snapshots.take(request.page_hashes[pages - 1])
        if place is not None:
            plan.saved.append((request.slot, place))

    def _grow(self, request: Request, missing: int, plan: Plan) -> bool:
        """Give a running request `missing` more pages of each group, taking them from the last ones in order. False if
        it was the last."""
        self._free_behind(request)
        missing *= len(self.groups)
        pages = self.pool.allocate(missing)
        while pages is None:
            victim = self.running[-1]
            self._preempt(victim, plan)
            if victim is request:
                return False
            pages = self.pool.allocate(missing)
        self._attach(request, pages, plan)
        return True

    def _attach(self, request: Request, pages: list[int], plan: Plan) -> None:
        slot, first = request.slot, len(request.pages)
        assert slot is not None
        plan.page_updates += [(slot, first + index, page) for index, page in enumerate(pages) if page]
        request.pages += pages

    def _free_behind(self, request: Request) -> None:
        """Give back the pages behind windows. Steps in flight may still read them: whoever gets them writes later."""
        pages, size, gone = request.pages, len(self.groups), []
        for group, window in self._windows:
            at = (self.groups.behind(window, request.num_computed) - 1) * size + group
            while at >= 0 and pages[at]:
                gone.append(pages[at])
                pages[at] = 0
                at -= size
        if gone:
            self.pool.free(gone)

    def _preempt(self, victim: Request, plan: Plan) -> None:
        """Back to waiting, to be computed again from its tokens; mostly a prefix hit. Only decode rows of this plan can
        be undone: nothing shares their pages yet."""
        for index in range(plan.num_decode):
            if plan.rows[index].request is victim:
                plan.page_updates = [update for update in plan.page_updates if update[0] != victim.slot]
                del plan.rows[index]
                plan.num_decode -= 1
                plan.num_tokens -= 1
                victim.num_tokens -= 1
                victim.num_inflight -= 1
                break
        self._release(victim)
        victim.status = Status.WAITING
        victim.num_computed = 0
        victim.decoding = False
        victim.num_preemptions += 1
        insort(self.waiting, victim, key=ORDER)
        plan.preempted.append(victim)
        self._stats.preemptions += 1

    # Admission.

    def _take_ready(self) -> None:
        """Queue the requests whose grammars are compiled; refuse those whose grammars cannot be."""
        for request in list(self.unready):
            assert request.grammar is not None
            try:
                if not request.grammar.start():
                    continue
            except Exception as error:
                self._finish(request, "error")
                self._refuse(request, str(error))
                continue
            _remove(self.unready, request)
            request.status = Status.WAITING
            insort(self.waiting, request, key=ORDER)

    def _admit(self, plan: Plan) -> None:
        """Start waiting requests, in order, while there are tokens, slots and pages."""
        while self.waiting and self._free_slots and plan.num_tokens < self.budget:
            request = self.waiting[0]
            if request.num_inflight:
                break  # it was preempted, and its last token is still to be read
            error = self._refusal(request)
            if error is not None:
                self._finish(request, "error")
                self._refuse(request, error)
                continue
            blocked, free = self._blocked
            if request is blocked and self.pool.num_free <= free:
                break  # nothing was freed since it did not fit: no need to look its pages up again
            if not self._start(request, plan):
                self._blocked = request, self.pool.num_free
                break
            self._blocked = None, 0
            self._plan_chunk(request, plan)

    def _start(self, request: Request, plan: Plan) -> bool:
        """Give a waiting request its slot and the pages of its prefix that are cached; False if the rest of it would
        not fit."""
        hits, known = self._lookup(request)
        shared = [page for page in hits if page]
        reclaimed = sum(1 for page in shared if not self.pool.refs(page))
        reserve = self.reserve if self.running else 0
        if self.groups.held(request.num_tokens, self.chunk) - len(shared) > self.pool.num_free - reclaimed - reserve:
            return False
        for page in shared:
            self.pool.share(page)
        del self.waiting[0]
        request.status = Status.RUNNING
        request.slot = self._free_slots.pop()
        self._attach(request, hits, plan)
        request.num_shared = len(hits) // len(self.groups)
        request.num_computed = request.num_cached_tokens = request.num_shared * self.page_size
        if self.snapshots is not None:
            if hits:
                place = self.snapshots.touch(request.page_hashes[request.num_shared - 1])
                plan.restored.append((place, request.slot))
            # Where another request may go on alike: where this one left a known beginning, and at its last full page.
            ends = {known, (request.num_tokens - 1) // self.page_size}
            request.snapshot_after = sorted((n for n in ends if n > request.num_shared), reverse=True)
        insort(self.running, request, key=ORDER)
        plan.admitted.append(request)
        if request.scheduled_time is None:
            request.scheduled_time = time.monotonic()
            request.num_prompt_cached = request.num_cached_tokens
            self._stats.prompt_tokens += len(request.prompt_token_ids)
            if self.cache is not None:
                self._stats.prefix_queries += len(request.prompt_token_ids)
                self._stats.prefix_hits += request.num_cached_tokens
        return True

    def _lookup(self, request: Request) -> tuple[list[int], int]:
        """The pages of a cached prefix that the request starts with, and the length in pages of the beginning that is
        known: recurrent layers cannot always go on from its end. Its last token is always computed, as its logits are
        wanted."""
        params = request.params
        if self.cache is None or params.skip_reading_prefix_cache or params.prompt_logprobs is not None:
            return [], 0
        hits = self.cache.lookup(request, (request.num_tokens - 1) // self.page_size)
        known = len(hits) // len(self.groups)
        if self.snapshots is not None:
            hits = hits[: self.cache.snapshot(request, known) * len(self.groups)]
        return hits, known

    def _refusal(self, request: Request) -> str | None:
        """Why a request can never run."""
        prompt = len(request.prompt_token_ids)
        if not prompt:
            return "the prompt is empty."
        if prompt >= self.max_model_len:
            return f"the prompt of {prompt} tokens leaves no room in the context of {self.max_model_len}."
        if self.groups.held(request.num_tokens, self.chunk) > self.pool.capacity:
            room = self.groups.room(self.pool.capacity, self.chunk, self.max_model_len)
            return f"the request needs a cache of {request.num_tokens} tokens, and the whole cache holds {room}."
        return None

    # Reading and ending.

    def _accept(self, request: Request, token: int) -> None:
        """A token of a live request has become known. It may have been preempted since."""
        self._stats.generation_tokens += 1
        request.num_inflight -= 1
        request.output_token_ids.append(token)
        known = request.num_tokens - request.num_inflight
        if self.cache is not None:
            full = min(known, request.num_computed) // self.page_size
            if full > request.num_shared:
                self.cache.commit(request, full)
        grammar = request.grammar
        over = grammar is not None and grammar.accept(token)
        if over and grammar is not None and grammar.error is not None:
            request.error = grammar.error
            self._finish(request, "error")
        elif token in request.stops and len(request.output_token_ids) >= request.params.min_tokens:
            self._finish(request, "stop", request.stops[token])
        elif over:
            self._finish(request, "stop")
        elif known >= request.limit:
            self._finish(request, "length")
        elif request.params.repetition_detection is not None and repeats(
            request.output_token_ids, request.params.repetition_detection
        ):
            self._finish(request, "repetition", "repetition_detected")

    def _finish(self, request: Request, reason: str, stop_reason: int | str | None = None) -> None:
        if request.status is Status.RUNNING:
            self._release(request)
        elif request.status is Status.WAITING:
            _remove(self.waiting, request)
        elif request.status is Status.UNREADY:
            _remove(self.unready, request)
        request.status = Status.FINISHED
        request.finish_reason, request.stop_reason = reason, stop_reason
        del self._requests[request.request_id]

    def _release(self, request: Request) -> None:
        """Take a running request's slot and pages away. Rows in flight may still write there: see the top."""
        _remove(self.running, request)
        assert request.slot is not None
        self._free_slots.append(request.slot)
        request.slot = None
        self.pool.free([page for page in request.pages if page])
        request.pages = []

    def _refuse(self, request: Request, error: str) -> None:
        self._outputs.append(EngineOutput(request.request_id, [], finish_reason="error", error=error))

    def _new_prompt_logprobs(self, row: Row, scored: list[TokenLogprobs] | None) -> list[TokenLogprobs] | None:
        """Those that were not reported yet: a preempted request computes its prompt again."""
        if scored is None:
            return None
        request = row.request
        new = scored[max(0, request.num_prompt_logprobs - row.start) :]
        request.num_prompt_logprobs += len(new)
        return new or None


def _remove(queue: list[Request], request: Request) -> None:
    del queue[bisect_left(queue, request.order, key=ORDER)]
