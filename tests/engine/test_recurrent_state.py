"""The state of recurrent layers in the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.engine.driver import Driver, greedy_graphs
from tests.goldens import checkpoint, load_case
from vjax.config import EngineConfig
from vjax.engine.state import StateShape, abstract_state
from vjax.engine.step import lower
from vjax.layers.paging import STATE
from vjax.parallel.mesh import replicated

CASES = ("mamba2", "qwen3-next-dense")
SHARING = ("mamba2", "lfm2", "qwen3-next-dense")
OPTIONS = dict(
    max_num_seqs=4, max_num_batched_tokens=16, block_size=4, max_model_len=64, warmup="lazy", use_tqdm_on_load=False
)  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    path = checkpoint(request.param, tmp_path_factory.mktemp("models"))
    with greedy_graphs():
        driver = Driver(EngineConfig(model=str(path), **OPTIONS), few_graphs=True)
        yield driver
        driver.close()


@pytest.mark.parametrize("decode", [False, True], ids=["prefill", "decode"])
def test_it_is_updated_in_place(driver: Driver, decode: bool) -> None:
    """No temporary is as large as what all slots carry."""
    runner, plan = driver.engine.runner, driver.engine.runner.graphs.plan
    key = plan.key(decode, (plan.decode if decode else plan.prefill)[-1])
    state = abstract_state(runner.model.config, StateShape(64, 4, 1 << 18, 64), jnp.float32, runner.mesh)
    buffer = jax.ShapeDtypeStruct((key.size,), jnp.int32, sharding=replicated(runner.mesh))
    memory = lower(runner.model, key, runner.top, runner.params, state, buffer).compile().memory_analysis()
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)]
    assert memory.alias_size_in_bytes >= sum(sizes)
    carried = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.cache[STATE])]
    assert memory.temp_size_in_bytes < min(carried) / 8


def test_a_slot_is_new_to_its_next_request(driver: Driver) -> None:
    """Whatever it held: even what would spread to every later token."""
    golden = load_case(driver.engine.config.model.rsplit("/", 1)[-1])
    want = golden.greedy.tolist()
    assert driver.greedy(golden.prompts, golden.greedy.shape[1]) == want
    runner = driver.engine.runner
    spoiled = jax.tree.map(lambda x: jnp.full_like(x, np.nan), runner.state.cache[STATE])
    runner.state.cache[STATE] = spoiled
    assert driver.greedy(golden.prompts, golden.greedy.shape[1]) == want


def test_prefixes_are_not_shared_unless_asked(driver: Driver) -> None:
    assert driver.engine.scheduler.cache is None


@pytest.mark.parametrize("case", SHARING)
def test_prefix_hits_go_on_from_a_snapshot(case: str, tmp_path: Path) -> None:
    """The second time a prompt is known to its last full page, then one that leaves it earlier."""
    config = EngineConfig(model=str(checkpoint(case, tmp_path)), enable_prefix_caching=True, **OPTIONS)
    driver, golden = Driver(config, few_graphs=True), load_case(case)
    want, n = golden.greedy.tolist(), golden.greedy.shape[1]
    full = sum((len(prompt) - 1) // 4 * 4 for prompt in golden.prompts)
    assert driver.greedy(golden.prompts, n) == want
    first = driver.engine.stats().prefix_hits
    assert driver.greedy(golden.prompts, n) == want
    assert driver.engine.stats().prefix_hits - first == full
    longest = max(golden.prompts, key=len)
    other = [*map(int, longest[:9]), 5, 6, 7, 8, 9, 10, 11]
    (cold,) = driver.greedy([other], 4)  # leaves the known beginning after two pages: a snapshot is made there
    hits = driver.engine.stats().prefix_hits
    (third,) = driver.greedy([[*other[:9], 11, 10, 9, 8]], 4)
    assert driver.engine.stats().prefix_hits == hits + 8
    assert driver.engine.reset_prefix_cache()
    assert driver.greedy([other], 4) == [cold]
    assert driver.engine.reset_prefix_cache()
    assert driver.greedy([[*other[:9], 11, 10, 9, 8]], 4) == [third]
    driver.close()
