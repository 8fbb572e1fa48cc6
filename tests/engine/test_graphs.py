"""Which graphs are compiled first, and which one a step takes while others are missing; no model."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from vjax.engine.graphs import NICE, BucketPlan, Graphs
from vjax.engine.layout import Layout

PLAN = BucketPlan(decode=(1, 2, 4, 8), prefill=(16, 64, 128, 512), rows=8)


class Lowered:
    """Stands for `jax.stages.Lowered`: compiles to its key, once `gate` is open."""

    gate = threading.Event()

    def __init__(self, key: Layout, log: list[tuple[Layout, int]]) -> None:
        self.key, self.log = key, log

    def compile(self, compiler_options: object) -> Layout:
        assert self.gate.wait(10)
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) if sys.platform == "linux" else 0
        self.log.append((self.key, nice))
        return self.key


@pytest.fixture
def log() -> list[tuple[Layout, int]]:
    return []


@pytest.fixture
def graphs(log: list[tuple[Layout, int]]) -> Iterator[Graphs]:
    lower: Any = lambda key: Lowered(key, log)
    Lowered.gate.set()
    graphs = Graphs(lower, PLAN, workers=1)
    yield graphs
    Lowered.gate.set()
    graphs.close()


def names(keys: list[Layout]) -> list[str]:
    return [str(key) for key in keys]


def test_the_first_graphs_serve_anything_and_a_short_question_well() -> None:
    assert names(PLAN.first()) == ["prefill 512", "decode 1", "prefill 64"]
    keys = PLAN.keys()
    assert names(keys)[:4] == ["prefill 512", "decode 1", "prefill 64", "decode 8"]
    assert len(keys) == len(set(keys)) == len(PLAN.decode) + len(PLAN.prefill)


def test_tiny_plans_have_each_graph_once() -> None:
    assert names(BucketPlan((1,), (16,), 1).first()) == ["prefill 16", "decode 1"]
    assert names(BucketPlan((1,), (16,), 1).keys()) == ["prefill 16", "decode 1"]


@pytest.mark.parametrize(("seqs", "tokens"), [(1, 1), (1, 16), (16, 512), (300, 10000)])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_plans_end_at_the_limits(platform: str, seqs: int, tokens: int) -> None:
    plan = BucketPlan.make(platform, seqs, tokens)
    assert (plan.decode[-1], plan.prefill[-1]) == (seqs, tokens)
    assert list(plan.prefill) == sorted(set(plan.prefill))


def test_the_smallest_ready_graph_is_taken(graphs: Graphs) -> None:
    graphs.compile_all(PLAN.first(), progress=False)
    assert [str(graphs.take(False, size)[0]) for size in (3, 64, 65, 512)] == [
        "prefill 64", "prefill 64", "prefill 512", "prefill 512"
    ]  # fmt: skip
    graphs.compile_all(PLAN.keys(), progress=False)
    assert str(graphs.take(False, 3)[0]) == "prefill 16"
    with pytest.raises(ValueError, match="513"):
        graphs.take(False, 513)


def test_a_prefill_graph_stands_in_for_a_decode_graph_that_is_on_its_way(graphs: Graphs) -> None:
    graphs.compile_all(PLAN.first(), progress=False)
    Lowered.gate.clear()
    all_keys = PLAN.keys()
    later = [graphs.submit(key) for key in all_keys]
    assert str(graphs.take(True, 3)[0]) == "prefill 64"
    assert str(graphs.take(True, 1)[0]) == "decode 1"
    Lowered.gate.set()
    for future in later:
        future.result(10)
    assert str(graphs.take(True, 3)[0]) == "decode 4"


def test_a_stand_in_has_room_for_the_rows_and_edits(graphs: Graphs) -> None:
    graphs.compile_all([PLAN.key(False, 16), PLAN.key(True, 8)], progress=False)
    many = 1000  # edits: another layout, which is not ready
    layout, _ = graphs.take(True, 8, edits=many)
    assert (str(layout), layout.edits >= many) == ("decode 8", True)


def test_a_graph_that_nobody_asked_for_is_compiled_at_once(graphs: Graphs, log: list[tuple[Layout, int]]) -> None:
    assert str(graphs.take(False, 20)[0]) == "prefill 64"
    assert str(graphs.take(True, 3)[0]) == "decode 4"
    assert [str(key) for key, _ in log] == ["prefill 64", "decode 4"]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_compiling_ahead_yields_to_steps_and_what_a_step_waits_for_does_not(
    graphs: Graphs, log: list[tuple[Layout, int]]
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    graphs.submit(PLAN.key(True, 8)).result(10)
    graphs.take(False, 16)
    assert [nice for _, nice in log] == [max(own, NICE), own]


def test_a_failed_compilation_reaches_the_step() -> None:
    def fail(key: Layout) -> Any:
        raise RuntimeError("no such operation")

    graphs = Graphs(fail, PLAN, workers=1)
    with pytest.raises(RuntimeError, match="no such operation"):
        graphs.take(True, 1)
    graphs.close()


def test_graphs_of_grammars_do_not_queue_behind_the_warm_up(log: list[tuple[Layout, int]]) -> None:
    grammar, started = PLAN.grammar_key(8, 1, 64), threading.Event()

    def lower(key: Any) -> Any:
        if key is grammar:
            return type("Small", (), {"compile": lambda self, compiler_options: key})()
        started.set()
        return Lowered(key, log)

    Lowered.gate.clear()
    graphs = Graphs(lower, PLAN, workers=1)
    graphs.compile_later(PLAN.keys())
    assert started.wait(10)
    assert graphs.submit(grammar).result(10) is grammar
    assert log == []
    Lowered.gate.set()
    graphs.close()
