"""Layers with a window give back the pages behind it, and no token changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.driver import Driver
from tests.goldens import checkpoint, load_case
from vjax.config import EngineConfig

TOKENS = 64


@pytest.mark.parametrize("case", ["mistral", "gemma3-pattern"])
def test_long_requests_in_few_pages(case: str, tmp_path: Path) -> None:
    config = EngineConfig(
        model=str(checkpoint(case, tmp_path)), max_num_seqs=2, max_num_batched_tokens=8, block_size=4,
        max_model_len=TOKENS, num_gpu_blocks_override=200, warmup="lazy", use_tqdm_on_load=False,
    )  # fmt: skip
    driver = Driver(config, few_graphs=True)
    groups, prompts = driver.engine.scheduler.groups, load_case(case).prompts[:2]
    length = TOKENS - max(map(len, prompts))
    want = driver.greedy(prompts, length)
    with driver.few_pages(TOKENS):
        scheduler = driver.engine.scheduler
        assert scheduler.pool.capacity < TOKENS // 4 * len(groups)  # less than one request without windows
        assert driver.greedy(prompts, length) == want
        assert scheduler.pool.num_used == 0
    driver.close()


def test_a_prefix_is_found_by_what_windows_still_see(tmp_path: Path) -> None:
    config = EngineConfig(
        model=str(checkpoint("mistral", tmp_path)), max_num_seqs=2, max_num_batched_tokens=16, block_size=4,
        max_model_len=TOKENS, num_gpu_blocks_override=14, warmup="lazy", use_tqdm_on_load=False,
    )  # fmt: skip
    driver = Driver(config, few_graphs=True)
    prompt = [int(token) for token in load_case("mistral").tokens[0]][:25]
    (answer,) = driver.greedy([prompt], 16)
    scheduler = driver.engine.scheduler
    hits, again = scheduler.stats().prefix_hits, prompt + answer[:8]
    assert driver.greedy([again], 8) == [answer[8:]]
    assert scheduler.stats().prefix_hits == hits + 32  # its first pages may be gone
    driver.close()
