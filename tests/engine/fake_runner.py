"""A device without a device: executes plans on a simulated cache, and checks every page that a row reads.

What the real cache holds for a position depends on all tokens up to it, and on the layers; here that is one number,
`chain`, and the group. So a page that is stale, overwritten or another sequence's shows at once. Results come one step
late, as in the engine.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field

from vjax.engine.messages import EngineOutput, EngineRequest
from vjax.engine.request import Request, Status
from vjax.engine.scheduler import Plan, Scheduler

VOCAB = 23
EOS = 0


def root(request: Request | EngineRequest) -> int:
    return zlib.crc32(repr((request.cache_salt, tuple(request.extra_keys))).encode())


def chain(before: int, token: int) -> int:
    return zlib.crc32(token.to_bytes(4, "little"), before)


def next_token(state: int) -> int:
    return (state >> 7) % VOCAB


def expected(message: EngineRequest, max_model_len: int) -> tuple[list[int], str, int | None]:
    """Tokens, finish reason and stop reason of the request when it has the engine to itself."""
    state, params = root(message), message.params
    for token in message.prompt_token_ids:
        state = chain(state, token)
    output: list[int] = []
    while True:
        token = next_token(state)
        output.append(token)
        state = chain(state, token)
        if len(output) >= params.min_tokens:
            if token in message.eos_token_ids and not params.ignore_eos:
                return output, "stop", None
            if token in (params.stop_token_ids or ()):
                return output, "stop", token
        if len(output) == params.max_tokens or len(message.prompt_token_ids) + len(output) == max_model_len:
            return output, "length", None


class FakeRunner:
    def __init__(self, scheduler: Scheduler, num_slots: int) -> None:
        self.size, self.length = scheduler.page_size, scheduler.max_model_len
        self.windows = scheduler.groups.windows
        self.cells: dict[tuple[int, int], tuple[int, int]] = {}  # page, offset -> group, chain
        self.table: dict[tuple[int, int], int] = {}  # slot, index -> page
        self.tokens: dict[tuple[int, int], int] = {}  # slot, position -> token
        self.carried: dict[int, int] = {}  # slot -> chain after its last token: what recurrent layers know
        self.snapshots: dict[int, int] = {}
        self.recurrent = scheduler.snapshots is not None
        self.num_slots = num_slots

    def execute(self, plan: Plan) -> list[int]:
        """Runs a step as a layer does: everybody writes, then everybody reads. Returns a token for every row."""
        updates = [(slot, index) for slot, index, _ in plan.page_updates]
        assert len(updates) == len(set(updates)), "a page-table entry is set twice: which one wins is undefined"
        for slot, index, page in plan.page_updates:
            assert page != 0
            assert index // len(self.windows) * self.size < self.length, "past the page table's end"
            self.table[slot, index] = page
        for snapshot, slot in plan.restored:
            self.carried[slot] = self.snapshots[snapshot]
        chains = [self._write(plan, index) for index in range(len(plan.rows))]
        written = Counter(
            self.page(row.slot, group, index * self.size)
            for row in plan.rows
            for index in range(row.start // self.size, (row.start + row.count - 1) // self.size + 1)
            for group in range(len(self.windows))
        )
        assert max(written.values()) == 1, "two rows write to one page"
        sampled = []
        for row, states in zip(plan.rows, chains, strict=True):
            for group, window in enumerate(self.windows):
                for position in range(0 if window is None else max(row.start - window + 1, 0), len(states)):
                    held = self.cells[self.page(row.slot, group, position), position % self.size]
                    assert held == (group, states[position]), f"wrong content at {position} of {row}, group {group}"
            assert not self.recurrent or not row.start or self.carried[row.slot] == states[row.start - 1]
            self.carried[row.slot] = states[-1]
            token = next_token(states[-1])
            sampled.append(token if row.sample else -1)
            if row.sample:
                self.tokens[row.slot, row.start + row.count] = token
        for slot, snapshot in plan.saved:
            self.snapshots[snapshot] = self.carried[slot]
        return sampled

    def page(self, slot: int, group: int, position: int) -> int:
        return self.table[slot, position // self.size * len(self.windows) + group]

    def _write(self, plan: Plan, index: int) -> list[int]:
        """Fill the row's part of the cache. Returns the chain at each of its positions, from 0."""
        row = plan.rows[index]
        request, end = row.request, row.start + row.count
        assert 0 <= row.slot < self.num_slots
        known = request.token_ids(0, end)
        if index < plan.num_decode:
            assert row.count == 1
            held = self.tokens[row.slot, row.start]  # a decode graph has no other source
            assert known[row.start :] in ([], [held])
            known = request.token_ids(0, row.start)
            known += [self.tokens[row.slot, position] for position in range(len(known), end)]
        for position in range(row.start, len(known)):
            self.tokens[row.slot, position] = known[position]
        assert len(known) == end, "a prompt's token is not known"
        states, state = [], root(request)
        for position, token in enumerate(known):
            state = chain(state, token)
            states.append(state)
            if position >= row.start:
                for group in range(len(self.windows)):
                    self.cells[self.page(row.slot, group, position), position % self.size] = (group, state)
        return states


@dataclass
class Simulation:
    """The engine's loop over a `FakeRunner`, with every invariant checked after each turn."""

    scheduler: Scheduler
    num_slots: int
    overlap: bool = True
    turns: int = 0
    tokens: dict[str, list[int]] = field(default_factory=dict)
    last: dict[str, EngineOutput] = field(default_factory=dict)
    finished_at: dict[str, int] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    pending: tuple[Plan, list[int]] | None = None

    def __post_init__(self) -> None:
        self.runner = FakeRunner(self.scheduler, self.num_slots)

    def turn(self) -> list[EngineOutput]:
        scheduler = self.scheduler
        last, self.pending = self.pending, None
        plan = scheduler.plan()
        self.check_pages()
        if plan is not None:
            self.check_plan(plan)
            self.plans.append(plan)
            self.pending = plan, self.runner.execute(plan)
            if not self.overlap:
                last, self.pending = self.pending, None
        outputs = scheduler.take_outputs()
        if last is not None:
            outputs += scheduler.update(*last)
        self.turns += 1
        for output in outputs:
            assert output.request_id not in self.finished_at, "news of a finished request"
            self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            self.last[output.request_id] = output
            if output.finish_reason is not None:
                self.finished_at[output.request_id] = self.turns
        self.check_pages()
        return outputs

    def run(self, most: int = 2000) -> None:
        while self.scheduler.has_work or self.pending:
            assert self.turns < most, "no end in sight"
            self.turn()

    def check_plan(self, plan: Plan) -> None:
        scheduler, rows = self.scheduler, plan.rows
        assert rows
        assert plan.num_tokens == sum(row.count for row in rows) <= scheduler.budget
        assert all(0 < row.count <= max(scheduler.chunk, 1) for row in rows)
        assert len({row.slot for row in rows}) == len({id(row.request) for row in rows}) == len(rows)
        assert plan.decode_only == (plan.num_decode == len(rows))
        assert not (plan.admitted and plan.preempted)
        for index, row in enumerate(rows):
            request = row.request
            assert request.status is Status.RUNNING
            assert request.slot == row.slot
            assert request.num_computed == row.start + row.count
            assert row.sample == (request.num_inflight > 0) == (index < plan.num_decode or request.decoding)
            assert request.num_tokens <= request.limit
            assert request.num_inflight <= (2 if self.overlap else 1)
            if index >= plan.num_decode:
                assert request.num_inflight == int(row.sample), "prefill of unknown tokens"

    def check_pages(self) -> None:
        scheduler, pool, cache = self.scheduler, self.scheduler.pool, self.scheduler.cache
        held = Counter(page for request in scheduler.running for page in request.pages if page)
        refs = {page: pool.refs(page) for page in range(1, pool.capacity + 1)}
        assert refs == {page: held[page] for page in refs}
        free = [*pool._empty, *pool._cached]
        assert sorted([*free, *held]) == list(range(1, pool.capacity + 1)), "a page is lost or has two owners"
        assert pool.num_used == len(held)
        kept = {page for page in refs if pool._kept[page]}
        assert set(pool._cached) == kept - set(held)
        if cache is not None:
            assert cache._hashes == {page: digest for digest, page in cache._pages.items()}
            assert set(cache._hashes) == kept
            if cache.snapshots is not None:
                places = [*cache.snapshots._free, *cache.snapshots._places.values(), *cache.snapshots._new.values()]
                assert sorted(places) == list(range(len(places))), "a snapshot is lost or has two owners"
                assert {(digest, 0) for digest in cache.snapshots._places} <= cache._pages.keys()
        slots = [request.slot for request in scheduler.running]
        assert sorted([*slots, *scheduler._free_slots]) == list(range(self.num_slots))
        for queue, status in ((scheduler.waiting, Status.WAITING), (scheduler.running, Status.RUNNING)):
            assert all(request.status is status for request in queue)
            assert [request.order for request in queue] == sorted(request.order for request in queue)
        for request in scheduler.running:
            assert request.num_shared * scheduler.page_size <= request.num_computed <= request.num_tokens
            self.check_windows(request)
        for request in [*scheduler.running, *scheduler.waiting]:
            assert scheduler._requests[request.request_id] is request
            assert request.num_tokens == len(request.all_token_ids) + request.num_inflight
        for request in scheduler.waiting:
            assert (request.slot, request.pages, request.num_computed) == (None, [], 0)

    def check_windows(self, request: Request) -> None:
        """All that the request's next token sees is there, and little more."""
        scheduler, groups = self.scheduler, self.scheduler.groups
        for group, window in enumerate(groups.windows):
            pages = request.pages[group :: len(groups)]
            assert len(pages) * scheduler.page_size >= request.num_computed
            gone = pages.count(0)
            assert 0 not in pages[gone:], "only leading pages may be missing"
            assert gone <= (0 if window is None else groups.behind(window, request.num_computed))
        count = sum(page > 0 for page in request.pages)
        assert count <= groups.held(max(request.num_tokens, request.num_computed), scheduler.chunk)
