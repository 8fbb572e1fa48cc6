"""Buffers that stay in place where steps are CUDA graphs, tried on a CPU, which reuses donated buffers as well."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from tests.engine.driver import Driver
from tests.engine.test_engine import CASE, OPTIONS
from tests.goldens import checkpoint, load_case
from vjax.config import EngineConfig
from vjax.engine.kept import Kept
from vjax.sampling_params import SamplingParams


def test_results_stay_in_place(tmp_path: Path) -> None:
    """Same tokens, and each step writes where the last one of its shape did."""
    driver = Driver(EngineConfig(model=str(checkpoint(CASE, tmp_path)), **OPTIONS), few_graphs=True)
    case, runner = load_case(CASE), driver.engine.runner
    prompts = [[int(token) for token in case.tokens[0, :n]] for n in (13, 5)]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2)
    expected = driver.tokens(prompts, params)
    driver.engine.reset_prefix_cache()

    runner._kept = Kept(runner.mesh)
    runner.graphs._ready.clear()
    runner.graphs._pending.clear()
    seen: list[tuple[tuple[int, ...], int]] = []
    run = runner.run

    def watched(*args: object) -> tuple[dict[str, jax.Array], jax.Array]:
        result, logits = run(*args)  # type: ignore[arg-type]
        seen.append((logits.shape, logits.unsafe_buffer_pointer()))
        return result, logits

    runner.run = watched  # type: ignore[method-assign]
    assert driver.tokens(prompts, params) == expected
    driver.close()
    assert len(seen) > len(set(seen)) == len({shape for shape, _ in seen})


def test_a_plan_has_one_address() -> None:
    kept = Kept(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",)))
    first = kept.plan(np.arange(64, dtype=np.int32))
    where = first.unsafe_buffer_pointer()
    second = kept.plan(np.arange(64, dtype=np.int32) + 1)
    assert first.is_deleted()
    assert second.unsafe_buffer_pointer() == where
    assert np.asarray(second)[0] == 1
