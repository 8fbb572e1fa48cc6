"""What the scheduler does with pages: prefixes that are found, and too few pages for all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.fake_runner import Simulation, expected
from tests.engine.scheduling import EOS, make, message, plan, shape, step
from vjax.engine.request import Status

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
