"""Who runs in a step, how requests end, and what is reported; pages are test_scheduler_pages.py's."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.engine.fake_runner import Simulation
from tests.engine.scheduling import EOS, make, message, plan, shape, step
from vjax.engine.messages import EngineRequest, TokenLogprobs
from vjax.engine.scheduler import Plan
from vjax.errors import RequestError
from vjax.sampling_params import SamplingParams

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
