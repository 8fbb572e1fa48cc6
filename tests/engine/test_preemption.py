"""A preempted request goes on with the tokens it would have had, on the real device side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.driver import Driver
from tests.goldens import checkpoint, load_case
from vjax.config import EngineConfig
from vjax.sampling_params import SamplingParams

CASE = "llama-gqa"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    config = EngineConfig(
        model=str(checkpoint(CASE, tmp_path_factory.mktemp("preemption"))),
        max_num_seqs=4,
        max_num_batched_tokens=16,
        block_size=4,
        max_model_len=64,
        num_gpu_blocks_override=18,
        warmup="lazy",
        use_tqdm_on_load=False,
    )
    driver = Driver(config, few_graphs=True)
    yield driver
    driver.close()


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 1, "seed": 3},
        {"temperature": 0, "frequency_penalty": 1.9, "presence_penalty": 1.9},  # these count the outputs so far
        {"temperature": 0, "repetition_penalty": 1.9},
    ],
)
def test_preemption_changes_no_token(driver: Driver, options: dict[str, Any]) -> None:
    tokens = [int(token) for token in load_case(CASE).tokens[0]]
    prompts = [tokens[:10], tokens[1:12], tokens[2:13]]
    params = SamplingParams(max_tokens=30, ignore_eos=True, **options)
    alone = [driver.tokens([prompt], params)[0] for prompt in prompts]
    driver.engine.reset_prefix_cache()
    before = driver.engine.stats().preemptions
    assert driver.tokens(prompts, params) == alone
    assert driver.engine.stats().preemptions > before
