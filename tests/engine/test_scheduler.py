from __future__ import annotations

import time
from typing import Any

import pytest

from tests.engine.fake_runner import Simulation, expected
from vjax.engine.messages import EngineRequest, TokenLogprobs
from vjax.engine.request import Status
from vjax.engine.scheduler import Plan, Scheduler
from vjax.errors import RequestError
from vjax.sampling_params import SamplingParams

EOS = 99


def make(**changes: Any) -> Scheduler:
    options: dict[str, Any] = dict(
        num_pages=33, page_size=4, num_slots=4, max_num_batched_tokens=64, max_model_len=64, watermark=0.0
    )
    return Scheduler(**(options | changes))


def message(name: str, prompt: int | list[int] = 5, *, priority: int = 0, arrival: float = 0.0, salt: str | None = None,
            **params: Any) -> EngineRequest:  # fmt: skip
    """A request whose prompt, given as a length, is like no other name's."""
    ids = [ord(name[0]) * 1000 + i for i in range(prompt)] if isinstance(prompt, int) else prompt
    options = SamplingParams(**(dict(max_tokens=8) | params))
    return EngineRequest(name, ids, options, [EOS], priority=priority, arrival_time=arrival, cache_salt=salt)


def plan(scheduler: Scheduler) -> Plan:
    made = scheduler.plan()
    assert made is not None
    return made


def shape(made: Plan) -> list[tuple[str, int, int, bool]]:
    return [(row.request.request_id, row.start, row.count, row.sample) for row in made.rows]


def step(scheduler: Scheduler, token: int = 7) -> Plan:
    """One turn without overlap; every row samples `token`."""
    made = plan(scheduler)
    scheduler.update(made, [token] * len(made.rows))
    return made


# Planning.


def test_prefill_then_decode_one_step_ahead() -> None:
    scheduler = make()
    scheduler.add(message("a", 7))
    first = plan(scheduler)
    assert shape(first) == [("a", 0, 7, True)]
    assert [update[:2] for update in first.page_updates] == [(first.rows[0].slot, 0), (first.rows[0].slot, 1)]
    assert (first.num_tokens, first.decode_only) == (7, False)
    assert first.admitted == [first.rows[0].request]
    second = plan(scheduler)  # its input is in flight
    assert shape(second) == [("a", 7, 1, True)]
    assert (second.num_tokens, second.decode_only, second.page_updates, second.admitted) == (1, True, [], [])
    request = second.rows[0].request
    assert (request.num_tokens, request.num_inflight, request.output_token_ids) == (9, 2, [])
    (output,) = scheduler.update(first, [11])
    assert output.new_token_ids == [11]
    assert (request.num_tokens, request.num_inflight, request.all_token_ids[7:]) == (9, 1, [11])
    scheduler.update(second, [12])
    third = plan(scheduler)
    assert shape(third) == [("a", 8, 1, True)]
    assert [update[1] for update in third.page_updates] == [2]


def test_a_last_prompt_token_alone_is_no_decode_row() -> None:
    """Its id comes from the host: a decode graph would not know it."""
    scheduler = make(max_num_batched_tokens=4)
    scheduler.add(message("a", 5))
    assert not step(scheduler).decode_only
    last = step(scheduler)
    assert shape(last) == [("a", 4, 1, True)]
    assert not last.decode_only
    assert step(scheduler).decode_only


def test_a_threshold_beyond_the_budget_asks_for_no_more_pages() -> None:
    scheduler = make(
        num_pages=2, page_size=1, num_slots=1, windows=(1,), max_num_batched_tokens=1, long_prefill_token_threshold=3,
        enable_prefix_caching=False,
    )  # fmt: skip
    scheduler.add(message("a", 3))
    assert shape(plan(scheduler)) == [("a", 0, 1, False)]


def test_decode_rows_come_first_then_chunks_then_new_requests() -> None:
    scheduler = make(max_num_batched_tokens=10, long_prefill_token_threshold=4)
    scheduler.add(message("long", 12))
    scheduler.add(message("b", 2))
    assert shape(step(scheduler)) == [("long", 0, 4, False), ("b", 0, 2, True)]
    scheduler.add(message("c", 3))
    assert shape(step(scheduler)) == [("b", 2, 1, True), ("long", 4, 4, False), ("c", 0, 3, True)]
    third = step(scheduler)
    assert shape(third) == [("b", 3, 1, True), ("c", 3, 1, True), ("long", 8, 4, True)]
    assert third.num_decode == 2


def test_token_budget_cuts_prompts() -> None:
    scheduler = make(max_num_batched_tokens=8)
    scheduler.add(message("a", 6))
    scheduler.add(message("b", 9))
    scheduler.add(message("c", 3))
    assert shape(step(scheduler)) == [("a", 0, 6, True), ("b", 0, 2, False)]
    assert shape(step(scheduler)) == [("a", 6, 1, True), ("b", 2, 7, True)]
    assert shape(step(scheduler)) == [("a", 7, 1, True), ("b", 9, 1, True), ("c", 0, 3, True)]


def test_budget_must_hold_every_slot() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens=3 is less than num_slots=4"):
        make(max_num_batched_tokens=3)


def test_slots_limit_admission() -> None:
    scheduler = make(num_slots=2)
    for name in "abc":
        scheduler.add(message(name, max_tokens=2))
    assert {row.request.request_id for row in step(scheduler).rows} == {"a", "b"}
    assert (scheduler.stats().running, scheduler.stats().waiting) == (2, 1)
    step(scheduler)
    freed = step(scheduler)
    assert shape(freed) == [("c", 0, 5, True)]
    assert freed.rows[0].slot in (0, 1)


def test_nothing_to_do() -> None:
    scheduler = make()
    assert scheduler.plan() is None
    assert not scheduler.has_work


# Ending.


def test_requests_that_end_by_count_are_not_planned_past_it() -> None:
    scheduler = make()
    scheduler.add(message("a", 3, max_tokens=2))
    first, second = plan(scheduler), plan(scheduler)
    assert scheduler.plan() is None
    assert scheduler.has_work
    assert scheduler.update(first, [1])[0].finish_reason is None
    (output,) = scheduler.update(second, [2])
    assert (output.new_token_ids, output.finish_reason, output.stop_reason) == ([2], "length", None)
    assert not scheduler.has_work
    assert scheduler.pool.num_used == 0


def test_context_ends_a_request() -> None:
    scheduler = make(max_model_len=8)
    scheduler.add(message("a", 6, max_tokens=None))
    step(scheduler)
    made = plan(scheduler)
    (output,) = scheduler.update(made, [1])
    assert output.finish_reason == "length"
    assert made.rows[0].start == 6


@pytest.mark.parametrize(
    ("params", "token", "ending"),
    [
        ({}, EOS, ("stop", None)),
        ({"ignore_eos": True}, EOS, (None, None)),
        ({"stop_token_ids": [5, 6]}, 6, ("stop", 6)),
        ({"stop_token_ids": [EOS]}, EOS, ("stop", None)),
        ({"stop_token_ids": [EOS], "ignore_eos": True}, EOS, ("stop", EOS)),
        ({"min_tokens": 1}, EOS, ("stop", None)),
        ({"min_tokens": 2}, EOS, (None, None)),
        ({"min_tokens": 2, "stop_token_ids": [6]}, 6, (None, None)),
        ({"max_tokens": 1}, 7, ("length", None)),
        ({"max_tokens": 1}, EOS, ("stop", None)),
        ({"max_tokens": 1, "stop_token_ids": [6]}, 6, ("stop", 6)),
    ],
)
def test_stop_rules(params: dict[str, Any], token: int, ending: tuple[str | None, int | None]) -> None:
    scheduler = make()
    scheduler.add(message("a", **params))
    (output,) = scheduler.update(plan(scheduler), [token])
    assert output.new_token_ids == [token]
    assert (output.finish_reason, output.stop_reason) == ending


def test_row_after_the_end_is_ignored() -> None:
    scheduler = make()
    scheduler.add(message("a"))
    scheduler.add(message("b"))
    first, second = plan(scheduler), plan(scheduler)
    outputs = scheduler.update(first, [EOS, 1])
    assert [output.finish_reason for output in outputs] == ["stop", None]
    assert len(scheduler.running) == 1
    scheduler.add(message("c"))
    third = plan(scheduler)  # takes a's slot while a's useless row is in flight
    assert shape(third) == [("b", 6, 1, True), ("c", 0, 5, True)]
    assert third.rows[1].slot == first.rows[0].slot
    assert [output.request_id for output in scheduler.update(second, [8, 2])] == ["b"]
    assert first.rows[0].request.output_token_ids == [EOS]


@pytest.mark.parametrize("turns", range(4))
def test_abort_at_any_moment(turns: int) -> None:
    scheduler = make()
    scheduler.add(message("a", 5))
    plans: list[Plan] = []
    for _ in range(turns):
        plans.append(plan(scheduler))
        if len(plans) > 1:
            scheduler.update(plans[-2], [1])
    scheduler.abort("a")
    scheduler.abort("a")
    scheduler.abort("never heard of")
    assert not scheduler.has_work
    assert scheduler.pool.num_used == 0
    if plans:
        assert scheduler.update(plans[-1], [1]) == []
    scheduler.add(message("a", 5))  # the name is free again
    assert shape(step(scheduler))[0][0] == "a"


def test_a_name_in_use_is_refused() -> None:
    scheduler = make()
    scheduler.add(message("a"))
    with pytest.raises(RequestError, match="request id 'a' is in use"):
        scheduler.add(message("a"))


@pytest.mark.parametrize(
    ("prompt", "pages", "error"),
    [
        ([], 33, "prompt is empty"),
        (64, 33, "prompt of 64 tokens leaves no room in the context of 64"),
        (20, 5, "needs a cache of 20 tokens, and the whole cache holds 16"),
    ],
)
def test_requests_that_can_never_run(prompt: int | list[int], pages: int, error: str) -> None:
    scheduler = make(num_pages=pages)
    scheduler.add(message("a", prompt))
    assert scheduler.has_work
    assert scheduler.plan() is None
    (output,) = scheduler.take_outputs()
    assert (output.request_id, output.new_token_ids, output.finish_reason) == ("a", [], "error")
    assert error in (output.error or "")
    assert not scheduler.has_work
    assert scheduler.take_outputs() == []


def test_request_that_outgrows_the_whole_cache() -> None:
    simulation = Simulation(make(num_pages=4, num_slots=1), 1)
    simulation.scheduler.add(message("a", 10, max_tokens=9))
    simulation.scheduler.add(message("b", 2, max_tokens=3))
    simulation.run()
    assert simulation.last["a"].finish_reason == "error"
    assert "holds 12" in (simulation.last["a"].error or "")
    assert len(simulation.tokens["a"]) == 3
    assert simulation.last["b"].finish_reason == "length"


# The prefix cache.


def test_a_prefix_is_found_and_the_last_token_is_computed() -> None:
    scheduler = make()
    scheduler.add(message("a", list(range(8)), max_tokens=1))
    first = step(scheduler)
    scheduler.add(message("b", list(range(8))))
    hit = plan(scheduler)
    assert shape(hit) == [("b", 4, 4, True)]
    assert hit.page_updates[0][2] == first.page_updates[0][2]
    assert hit.rows[0].request.num_cached_tokens == 4
    (output,) = scheduler.update(hit, [1])
    assert output.num_cached_tokens == 4
    scheduler.add(message("c", list(range(9))))
    assert shape(step(scheduler))[-1] == ("c", 8, 1, True)
    stats = scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits, stats.prompt_tokens) == (25, 12, 25)


def test_neighbours_admitted_together_share_at_once() -> None:
    simulation = Simulation(make(), 4)
    for name in "ab":
        simulation.scheduler.add(message(name, list(range(10))))
    simulation.turn()
    assert shape(simulation.plans[0]) == [("a", 0, 10, True), ("b", 8, 2, True)]
    one, two = simulation.scheduler.running
    assert one.pages[:2] == two.pages[:2]
    assert simulation.scheduler.pool.refs(one.pages[0]) == 2
    simulation.run()


def test_generated_pages_are_found() -> None:
    scheduler = make()
    scheduler.add(message("a", [1, 2, 3], max_tokens=6))
    while scheduler.has_work:
        step(scheduler, 7)
    scheduler.add(message("b", [1, 2, 3, 7, 7, 7, 7, 7, 7, 5]))
    assert shape(step(scheduler)) == [("b", 8, 2, True)]


@pytest.mark.parametrize(
    ("enabled", "changes", "start"),
    [
        (True, {}, 8),
        (False, {}, 0),
        (True, {"salt": "s"}, 0),
        (True, {"prompt_logprobs": 0}, 0),
        (True, {"skip_reading_prefix_cache": True}, 0),
        (True, {"skip_reading_prefix_cache": False}, 8),
    ],
)
def test_who_reads_the_cache(enabled: bool, changes: dict[str, Any], start: int) -> None:
    scheduler = make(enable_prefix_caching=enabled)
    scheduler.add(message("a", list(range(10)), max_tokens=1))
    step(scheduler)
    scheduler.add(message("b", list(range(10)), **changes))
    assert step(scheduler).rows[0].start == start


@pytest.mark.parametrize("changes", [{"prompt_logprobs": 0}, {"skip_reading_prefix_cache": True}])
def test_who_does_not_read_still_writes(changes: dict[str, Any]) -> None:
    scheduler = make()
    scheduler.add(message("a", list(range(10)), max_tokens=1, **changes))
    step(scheduler)
    scheduler.add(message("b", list(range(10))))
    assert step(scheduler).rows[0].start == 8


def test_reset_prefix_cache() -> None:
    scheduler = make()
    scheduler.add(message("a", 10, max_tokens=1))
    made = plan(scheduler)
    assert not scheduler.reset_prefix_cache()
    scheduler.update(made, [1])
    assert scheduler.reset_prefix_cache()
    scheduler.add(message("a", 10))
    assert step(scheduler).rows[0].start == 0


# Preemption and admission under scarcity.


def test_the_last_one_is_preempted_and_resumes_from_its_tokens() -> None:
    simulation = Simulation(make(num_pages=7, num_slots=2), 2)
    scheduler = simulation.scheduler
    for name in "ab":
        scheduler.add(message(name, 8, max_tokens=12, ignore_eos=True))
    simulation.run()
    (victims,) = [made.preempted for made in simulation.plans if made.preempted]
    assert [victim.request_id for victim in victims] == ["b"]
    assert simulation.finished_at["a"] < simulation.finished_at["b"]
    assert (simulation.last["a"].num_preemptions, simulation.last["b"].num_preemptions) == (0, 1)
    assert scheduler.stats().preemptions == 1
    resumed = next(made for made in reversed(simulation.plans) if made.admitted)
    assert resumed.rows[0].start > 0  # its own pages were still there
    for name in "ab":
        assert simulation.tokens[name] == expected(message(name, 8, max_tokens=12, ignore_eos=True), 64)[0]


def test_token_in_flight_of_a_preempted_request() -> None:
    """It counts, and the request is not started again before it is read."""
    scheduler = make(num_pages=5, num_slots=2, enable_prefix_caching=False)
    scheduler.add(message("a", 7))
    scheduler.add(message("b", 7))
    first = plan(scheduler)
    second = plan(scheduler)  # both fill their second page
    third = plan(scheduler)  # a needs a third one
    victim = first.rows[1].request
    assert shape(third) == [("a", 8, 1, True)]
    assert third.preempted == [victim]
    assert (victim.status, victim.num_computed, victim.num_inflight) == (Status.WAITING, 0, 2)
    scheduler.update(first, [1, 2])
    scheduler.abort("a")
    assert scheduler.plan() is None  # there is room, but a token is missing
    assert [output.new_token_ids for output in scheduler.update(second, [3, 4])] == [[4]]
    resumed = plan(scheduler)
    assert shape(resumed) == [("b", 0, 9, True)]
    assert resumed.rows[0].request is victim
    assert victim.output_token_ids == [2, 4]


def test_preempted_request_that_had_ended() -> None:
    scheduler = make(num_pages=5, num_slots=2, enable_prefix_caching=False)
    scheduler.add(message("a", 7))
    scheduler.add(message("b", 7))
    first, second = plan(scheduler), plan(scheduler)
    scheduler.update(first, [1, 2])
    third = plan(scheduler)
    assert [victim.request_id for victim in third.preempted] == ["b"]
    assert scheduler.update(second, [1, EOS])[1].finish_reason == "stop"
    assert scheduler.stats().waiting == 0
    assert scheduler.update(third, [1])[0].request_id == "a"


def test_decode_row_planned_before_its_victim_was_chosen_is_undone() -> None:
    """A prompt goes on in chunks after the decode rows, and may need the pages of one of them."""
    scheduler = make(num_pages=7, num_slots=2, long_prefill_token_threshold=6, enable_prefix_caching=False)
    scheduler.add(message("a", 24))
    scheduler.add(message("b", 3))
    first = step(scheduler)
    assert shape(first) == [("a", 0, 6, False), ("b", 0, 3, True)]
    assert shape(step(scheduler)) == [("b", 3, 1, True), ("a", 6, 6, False)]
    last = plan(scheduler)
    victim = first.rows[1].request
    assert shape(last) == [("a", 12, 6, False)]
    assert last.preempted == [victim]
    assert (last.num_tokens, last.num_decode) == (6, 0)
    assert (victim.num_tokens, victim.num_inflight, len(victim.output_token_ids)) == (5, 0, 2)
    assert {slot for slot, _, _ in last.page_updates} == {last.rows[0].slot}  # b had been given a page


def test_nobody_is_admitted_in_a_plan_that_preempts() -> None:
    simulation = Simulation(make(num_pages=7, num_slots=3), 3)
    for name in "ab":
        simulation.scheduler.add(message(name, 8, max_tokens=12, ignore_eos=True))
    simulation.scheduler.add(message("c", 1, max_tokens=2))
    simulation.run()
    assert any(made.preempted for made in simulation.plans)
    assert not any(made.preempted and made.admitted for made in simulation.plans)


def test_admission_waits_for_room_for_the_whole_prompt() -> None:
    scheduler = make(num_pages=7, num_slots=3, max_num_batched_tokens=8)
    scheduler.add(message("a", 9, max_tokens=3))
    step(scheduler)
    scheduler.add(message("b", 16))
    scheduler.add(message("c", 2))
    assert shape(step(scheduler)) == [("a", 8, 1, True)]  # b's first chunk would fit; c does not overtake
    while "a" in scheduler._requests:
        step(scheduler)
    assert shape(step(scheduler)) == [("b", 0, 8, False)]


def test_watermark_leaves_pages_to_those_that_run() -> None:
    scheduler = make(num_pages=11, watermark=0.2)
    scheduler.add(message("a", 40))
    assert shape(step(scheduler)) == [("a", 0, 40, True)]  # alone, it may have them all
    scheduler = make(num_pages=11, watermark=0.2)
    scheduler.add(message("a", 20))
    step(scheduler)
    scheduler.add(message("b", 16))
    assert [row.request.request_id for row in step(scheduler).rows] == ["a"]


def test_priority_decides_who_is_admitted_and_who_is_preempted() -> None:
    scheduler = make(policy="priority", num_pages=7, num_slots=2)
    scheduler.add(message("late", 8, priority=1, arrival=2.0))
    scheduler.add(message("early", 8, priority=1, arrival=1.0))
    scheduler.add(message("urgent", 8, priority=0, arrival=3.0))
    first = plan(scheduler)
    assert [row.request.request_id for row in first.rows] == ["urgent", "early"]
    victims, last = [], first
    while not victims:
        last, before = plan(scheduler), last
        scheduler.update(before, [7] * len(before.rows))
        victims = last.preempted
    assert [victim.request_id for victim in victims] == ["early"]
    assert [request.request_id for request in scheduler.waiting] == ["early", "late"]


def test_fcfs_ignores_priority() -> None:
    scheduler = make(num_slots=1)
    scheduler.add(message("a", priority=5))
    scheduler.add(message("b", priority=0))
    assert step(scheduler).rows[0].request.request_id == "a"


# What is reported.


def test_logprobs_and_prompt_logprobs_are_passed_on() -> None:
    scheduler = make(max_num_batched_tokens=4)
    scheduler.add(message("a", 6, prompt_logprobs=0, logprobs=0))
    entry = TokenLogprobs(1, -0.5, 1, [], [])
    (output,) = scheduler.update(plan(scheduler), [0], [None], [[entry] * 4])
    assert (output.new_token_ids, output.new_logprobs, output.prompt_logprobs) == ([], None, [entry] * 4)
    (output,) = scheduler.update(plan(scheduler), [3], [entry], [[entry]])
    assert (output.new_token_ids, output.new_logprobs, output.prompt_logprobs) == ([3], [entry], [entry])
    (output,) = scheduler.update(plan(scheduler), [3])
    assert (output.new_logprobs, output.prompt_logprobs) == (None, None)


def test_stats() -> None:
    scheduler = make(num_pages=11)
    scheduler.add(message("a", 8))
    made = plan(scheduler)
    before = scheduler.stats()
    assert (before.running, before.waiting, before.cache_usage, before.last_step_tokens) == (1, 0, 0.2, 8)
    scheduler.update(made, [1])
    after = scheduler.stats()
    assert (after.steps, after.prompt_tokens, after.generation_tokens) == (1, 8, 1)
    assert before.generation_tokens == 0


def test_scheduled_time_is_that_of_the_first_admission() -> None:
    scheduler = make()
    scheduler.add(message("a"))
    before = time.monotonic()
    (output,) = scheduler.update(plan(scheduler), [1])
    assert output.scheduled_time is not None
    assert before <= output.scheduled_time <= time.monotonic()


def test_seeds() -> None:
    def seeds(seed: int | None) -> list[int]:
        scheduler = make(seed=seed)
        for name, own in (("a", None), ("b", None), ("c", -5)):
            scheduler.add(message(name, seed=own))
        return [request.seed for request in scheduler.waiting]

    one = seeds(0)
    assert one[2] == -5
    assert one[0] != one[1]
    assert all(0 <= seed < 2**63 for seed in one[:2])
    assert seeds(0) == one
    assert seeds(None)[:2] != seeds(None)[:2]


def test_host_time_of_a_decode_step() -> None:
    """64 requests; the bound is generous for slow machines, the target is a fifth of it."""
    scheduler = make(num_pages=2000, page_size=16, num_slots=64, max_num_batched_tokens=8192, max_model_len=2048)
    for index in range(64):
        scheduler.add(EngineRequest(str(index), [index] * 100, SamplingParams(max_tokens=1000), [EOS]))
    tokens, times, last = [7] * 64, [], plan(scheduler)
    for _ in range(200):
        started = time.perf_counter()
        made = plan(scheduler)
        scheduler.update(last, tokens)
        times.append(time.perf_counter() - started)
        last = made
    assert sorted(times)[len(times) // 2] < 600e-6
