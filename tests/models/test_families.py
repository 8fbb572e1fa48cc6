"""Every family against transformers: the plain pass, and the engine whatever way it gets to the tokens.

One engine a case serves all engine tests, so that its graphs are compiled once. One golden for each kind of layer has a
graph for decoding; the others decode through that of prefill.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vjax
from tests.engine.driver import Driver, greedy_graphs
from tests.goldens import Golden, case_names, checkpoint, load_case
from tests.goldens.gguf import gguf_checkpoint
from vjax.config import EngineConfig

CASES = case_names()
FAMILIES = {load_case(name).config["model_type"]: name for name in reversed(CASES)}  # the first case of each
# Compiling is what takes the suite's time: four families, and one for each kind of layer, are tested over several
# devices, and with a graph for decoding.
WIDE = ("llama", "qwen2", "qwen3", "gemma3_text")
KINDS = (
    "gemma4_text", "phi", "opt", "deepseek_v3", "lfm2", "qwen3_next", "nemotron_h", "kimi_linear", "gpt_oss", "laguna",
    "olmo2",
)  # fmt: skip
SPREAD = [(FAMILIES[family], size) for size in (2, 4) for family in WIDE] + [(FAMILIES[family], 2) for family in KINDS]
UNSAID: dict[str, Any] = {"nemotron-h": {"time_step_min": 0.6}}  # what a GGUF file does not say
OPTIONS: dict[str, Any] = dict(
    max_num_seqs=4, max_num_batched_tokens=16, block_size=4, max_model_len=64, warmup="lazy", use_tqdm_on_load=False
)  # fmt: skip


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module", params=CASES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_case(request.param)


@pytest.fixture(scope="module")
def driver(golden: Golden, folder: Path) -> Iterator[Driver]:
    path = checkpoint(golden.name, folder)
    with greedy_graphs():
        one = golden.name not in [FAMILIES[family] for family in WIDE + KINDS]
        driver = Driver(EngineConfig(model=str(path), **OPTIONS), few_graphs=True, one_graph=one)
        yield driver
        driver.close()


def test_plain_pass_equals_transformers(golden: Golden, folder: Path) -> None:
    model, params = vjax.load(checkpoint(golden.name, folder), use_tqdm_on_load=False)
    logits = jax.jit(model.apply)(params, jnp.asarray(golden.tokens))
    np.testing.assert_allclose(logits, golden.logits, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 3, 7, 16])
def test_greedy_tokens_for_any_chunking(driver: Driver, golden: Golden, chunk: int) -> None:
    driver.chunk(chunk)
    assert driver.greedy(golden.prompts, golden.greedy.shape[1]) == golden.greedy.tolist()


def test_prefix_hits_change_nothing(driver: Driver, golden: Golden) -> None:
    driver.greedy(golden.prompts, golden.greedy.shape[1])
    hits = driver.engine.stats().prefix_hits
    assert driver.greedy(golden.prompts, golden.greedy.shape[1]) == golden.greedy.tolist()
    shared = driver.engine.model.config.state_spec is None  # the state of recurrent layers is of one request
    assert (driver.engine.stats().prefix_hits > hits) == shared


def test_alone_or_among_strangers(driver: Driver, golden: Golden) -> None:
    strangers = [golden.tokens[0, :5], golden.tokens[-1, :20]]
    for prompt, want in zip(golden.prompts, golden.greedy.tolist(), strict=True):
        assert driver.greedy([prompt], len(want)) == [want]
        assert driver.greedy([*strangers, prompt], len(want))[-1] == want


def test_preemption_changes_nothing(driver: Driver, golden: Golden) -> None:
    longest = max(len(prompt) for prompt in golden.prompts) + golden.greedy.shape[1]
    with driver.few_pages(longest):  # one request fits, three do not
        assert driver.greedy(golden.prompts, golden.greedy.shape[1]) == golden.greedy.tolist()
        assert driver.engine.stats().preemptions > 0


@pytest.mark.parametrize("name", [name for name in CASES if load_case(name).case.gguf])
def test_gguf_gives_the_same_logits(name: str, folder: Path) -> None:
    golden = load_case(name)
    path = gguf_checkpoint(name, folder)
    model, params = vjax.load(path, hf_overrides=UNSAID.get(name), use_tqdm_on_load=False)
    logits = jax.jit(model.apply)(params, jnp.asarray(golden.tokens))
    np.testing.assert_allclose(logits, golden.logits, atol=1e-4)


@pytest.mark.once
@pytest.mark.parametrize(("name", "size"), SPREAD)
def test_tensor_parallel_gives_the_same_tokens(name: str, size: int, folder: Path) -> None:
    golden = load_case(name)
    options = {**OPTIONS, "tensor_parallel_size": size}
    with greedy_graphs():
        driver = Driver(EngineConfig(model=str(checkpoint(name, folder)), **options), few_graphs=True)
        assert driver.greedy(golden.prompts, golden.greedy.shape[1]) == golden.greedy.tolist()
        driver.close()
