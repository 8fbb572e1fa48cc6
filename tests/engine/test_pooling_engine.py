"""The engine of a model that encodes: which texts run together, in what order, in which graphs; pairs; aborts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vjax
from tests.goldens import load_encoder_case
from vjax.config import EngineConfig
from vjax.engine.messages import PoolRequest
from vjax.engine.pool_queue import PoolBuckets, PoolQueue
from vjax.engine.pooling import PoolingEngine
from vjax.frontend.pooling import as_array


def request(name: str, length: int, task: str = "embed", **fields: Any) -> PoolRequest:
    return PoolRequest(name, list(range(5, 5 + length)), task, **fields)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 100), st.booleans()), max_size=20),
    tokens=st.integers(1, 300),
    longest=st.integers(100, 130),
)
def test_every_text_runs_once_within_the_budget(lengths: list[tuple[int, bool]], tokens: int, longest: int) -> None:
    buckets = PoolBuckets(longest, tokens)
    queue, seen = PoolQueue(buckets), []
    for at, (length, each) in enumerate(lengths):
        queue.add(request(str(at), length, "token_embed" if each else "embed"))
    while (taken := queue.take()) is not None:
        batch, (rows, length) = taken
        assert (rows, length) in buckets.shapes()
        assert len(batch) <= rows
        assert rows * length <= tokens or rows == 1
        assert max(len(one.prompt_token_ids) for one in batch) <= length
        assert len({one.task for one in batch}) == 1
        seen += [int(one.request_id) for one in batch]
    assert sorted(seen) == list(range(len(lengths)))
    assert not len(queue)


def test_shapes_are_few() -> None:
    buckets = PoolBuckets(512, 4096)
    assert buckets.lengths == [16, 32, 64, 128, 256, 512]
    assert buckets.rows(512) == [1, 4, 8]
    assert len(buckets.shapes()) < 30


def test_the_oldest_goes_first_and_takes_its_like_along() -> None:
    def order(by_priority: bool) -> list[list[str]]:
        queue = PoolQueue(PoolBuckets(64, 64), by_priority)
        for name, length, priority in (("a", 60, 2), ("b", 5, 1), ("c", 50, 0), ("d", 9, 5), ("e", 3, 0)):
            queue.add(request(name, length, priority=priority))
        queue.abort(["d", "nobody"])
        assert len(queue) == 4
        batches = []
        while (taken := queue.take()) is not None:
            batches.append([one.request_id for one in taken[0]])
        return batches

    assert order(by_priority=False) == [["a"], ["b", "e"], ["c"]]
    assert order(by_priority=True) == [["c"], ["e", "b"], ["a"]]


def finished(engine: PoolingEngine) -> dict[str, np.ndarray]:
    found = {}
    while engine.has_work:
        found |= {one.request_id: as_array(one.pooled) for one in engine.step() if one.pooled is not None}
    return found


@pytest.mark.parametrize("warmup", [pytest.param("background", marks=pytest.mark.once), "lazy"])
def test_pairs_tasks_and_aborts(warmup: Any, tmp_path: Path) -> None:
    golden = load_encoder_case("bert")
    path = golden.checkpoint(tmp_path)
    config = EngineConfig(
        model=str(path), use_tqdm_on_load=False, warmup=warmup, max_num_seqs=4, max_num_batched_tokens=64,
        max_model_len=32,
    )  # fmt: skip
    engine = PoolingEngine(config)
    assert engine.limits.pooling is not None
    assert engine.limits.max_model_len == 32
    model, params = vjax.load(path, use_tqdm_on_load=False)
    for name, fields in {"plain": {}, "pair": {"second_from": 4}, "gone": {}}.items():
        engine.add(request(name, 9, **fields))
    engine.add(request("each", 9, "token_embed", second_from=4))
    engine.add(request("long", 31))
    engine.abort(["gone"])
    engine.step()
    assert engine.stats().waiting == 2
    found = finished(engine)
    assert found.keys() == {"plain", "pair", "each", "long"}
    assert engine.stats().prompt_tokens == 3 * 9 + 31
    tokens, types = jnp.arange(5, 14)[None], jnp.asarray([[0] * 4 + [1] * 5])

    def want(task: str, types: Any = None) -> np.ndarray:
        return np.asarray(model.encode(params, tokens, jnp.asarray([9]), task, types)[0])  # type: ignore[attr-defined]

    np.testing.assert_allclose(found["plain"], want("embed"), atol=1e-5)
    np.testing.assert_allclose(found["pair"], want("embed", types), atol=1e-5)
    states = want("token_embed", types)
    np.testing.assert_allclose(found["each"], states / np.linalg.norm(states, axis=1, keepdims=True), atol=1e-5)
    assert np.abs(found["plain"] - found["pair"]).max() > 1e-3

    engine.add(request("left", 9))
    engine.step()  # it runs
    engine.abort(["left"])
    assert finished(engine) == {}
    engine.shutdown()
