"""Random traffic through the scheduler and a fake device: whatever happens, a request's tokens are its own."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.fake_runner import EOS, VOCAB, Simulation, expected
from vjax.engine.messages import EngineRequest, TokenLogprobs
from vjax.engine.page_groups import PageGroups
from vjax.engine.scheduler import Scheduler
from vjax.sampling_params import SamplingParams

MAX_MODEL_LEN = 40


@dataclass
class Arrival:
    at: int
    message: EngineRequest
    abort_after: int | None


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """Prompts that often start alike."""
    family = draw(st.sampled_from([0, 0, 1]))
    shared = [(family * 7 + i) % VOCAB for i in range(draw(st.sampled_from([0, 3, 8, 8, 12, 16, 24])))]
    own = draw(st.one_of(st.just([]), st.lists(st.integers(0, VOCAB - 1), max_size=6)))
    return shared + own or [family]


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    found, at = [], 0
    for index in range(draw(st.integers(1, 9))):
        at += draw(st.sampled_from([0, 0, 0, 1, 3, 10]))
        longest = draw(st.one_of(st.none(), st.integers(1, 20)))
        params = SamplingParams(
            max_tokens=longest,
            min_tokens=draw(st.integers(0, min(longest or 3, 3))),
            ignore_eos=draw(st.booleans()),
            stop_token_ids=draw(st.sampled_from([None, [5], [EOS, 9]])),
            skip_reading_prefix_cache=draw(st.sampled_from([None, None, True])),
            prompt_logprobs=draw(st.sampled_from([None] * 7 + [0])),
        )
        message = EngineRequest(
            str(index),
            draw(prompts()),
            params,
            [EOS],
            priority=draw(st.integers(-1, 1)),
            arrival_time=float(draw(st.integers(0, 3))),
            cache_salt=draw(st.sampled_from([None] * 5 + ["a"])),
            extra_keys=draw(st.sampled_from([()] * 5 + [("adapter",)])),
        )
        found.append(Arrival(at, message, draw(st.sampled_from([None, None, None, 0, 1, 2, 5]))))
    return found


@st.composite
def schedulers(draw: st.DrawFn) -> tuple[Scheduler, int]:
    size = draw(st.sampled_from([1, 3, 4, 16]))
    slots = draw(st.integers(1, 5))
    windows = draw(st.sampled_from([(None,), (None,), (1,), (5,), (None, 6), (9, None, 9), (4, 12)]))
    budget = draw(st.integers(slots, slots + 30))
    one = PageGroups(windows, size).held(MAX_MODEL_LEN, budget)
    scheduler = Scheduler(
        num_pages=1 + one + draw(st.integers(0, one)),
        page_size=size,
        num_slots=slots,
        max_num_batched_tokens=budget,
        max_model_len=MAX_MODEL_LEN,
        windows=windows,
        snapshots=draw(st.sampled_from([0, 1, 2, 9])) if windows == (None,) else 0,
        enable_prefix_caching=draw(st.sampled_from([True, True, False])),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3])),
        watermark=draw(st.sampled_from([0.0, 0.2])),
    )
    return scheduler, slots


def serve(scheduler: Scheduler, slots: int, overlap: bool, traffic: list[Arrival]) -> Simulation:
    """Play the arrivals and aborts against the clock of turns, to the end."""
    simulation = Simulation(scheduler, slots, overlap)
    todo = sorted(traffic, key=lambda arrival: arrival.at)
    while todo or scheduler.has_work or simulation.pending:
        now = simulation.turns
        assert now < 3000, "no end in sight"
        while todo and todo[0].at <= now:
            scheduler.add(todo.pop(0).message)
        for arrival in traffic:
            if arrival.abort_after is not None and arrival.at + arrival.abort_after == now:
                scheduler.abort(arrival.message.request_id)
        simulation.turn()
    return simulation


@settings(max_examples=500, deadline=None)
@given(schedulers(), st.booleans(), arrivals())
def test_random_traffic(made: tuple[Scheduler, int], overlap: bool, traffic: list[Arrival]) -> None:
    scheduler, slots = made
    simulation = serve(scheduler, slots, overlap, traffic)
    work = 0
    for arrival in sorted(traffic, key=lambda arrival: arrival.at):
        message, name = arrival.message, arrival.message.request_id
        tokens, reason, stop = expected(message, MAX_MODEL_LEN)
        work += len(message.prompt_token_ids) + len(tokens) + 4
        if name not in simulation.finished_at:
            assert arrival.abort_after is not None
            assert simulation.tokens.get(name, []) == tokens[: len(simulation.tokens.get(name, []))]
            continue
        last = simulation.last[name]
        assert (simulation.tokens[name], last.finish_reason, last.stop_reason) == (tokens, reason, stop)
        # First come, first served: nobody waits for more than the work of those before it.
        if not scheduler.by_priority:
            assert simulation.finished_at[name] - arrival.at <= work
    assert scheduler.pool.num_used == 0
    assert scheduler.reset_prefix_cache()
    assert scheduler.pool.num_cached == 0
    stats = scheduler.stats()
    assert stats.generation_tokens == sum(map(len, simulation.tokens.values()))
    assert stats.prefix_hits <= stats.prefix_queries <= stats.prompt_tokens


@settings(max_examples=40, deadline=None)
@given(schedulers(), st.integers(2, 30), st.integers(1, 4))
def test_prompt_logprobs_come_once(made: tuple[Scheduler, int], prompt: int, requests: int) -> None:
    """Each prompt position is reported once and in order, however the prompt is cut or computed again."""
    scheduler, _ = made
    seen: dict[str, list[int]] = {str(i): [] for i in range(requests)}
    for name in seen:
        scheduler.add(EngineRequest(name, list(range(prompt)), SamplingParams(max_tokens=8, prompt_logprobs=0)))
    last = None
    while scheduler.has_work or last:
        plan = scheduler.plan()
        if last is not None:
            scored = [
                [TokenLogprobs(p, 0.0, 1, [], []) for p in range(row.start + 1, min(row.start + row.count + 1, prompt))]
                or None
                for row in last.rows
            ]
            for output in scheduler.update(last, [1] * len(last.rows), None, scored):
                seen[output.request_id] += [entry.token_id for entry in output.prompt_logprobs or ()]
        last = plan
    assert all(positions == list(range(1, prompt)) for positions in seen.values())
