"""A small scheduler, requests for it, and its plans in short."""

from __future__ import annotations

from typing import Any

from vjax.engine.messages import EngineRequest
from vjax.engine.scheduler import Plan, Scheduler
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
