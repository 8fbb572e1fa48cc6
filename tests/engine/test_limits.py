"""How the cache is sized, with a device that says how much memory it has."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import pytest

import vjax
from tests.goldens import case_names, checkpoint
from vjax.config import EngineConfig
from vjax.engine import limits
from vjax.engine.state import page_bytes, state_bytes
from vjax.errors import CapacityError
from vjax.models.config import ModelConfig

FLOAT32 = jnp.dtype(jnp.float32)
WEIGHT = 1 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(folder: Path) -> ModelConfig:
    return vjax.load(checkpoint(case_names()[0], folder))[0].config


def pages(monkeypatch: pytest.MonkeyPatch, model: ModelConfig, free: int, **options: int) -> int:
    monkeypatch.setattr(limits, "free_bytes", lambda config: free)
    monkeypatch.setattr(limits, "platform", lambda: "gpu")
    config = EngineConfig(model="m", max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, **options)
    return limits.state_shape(config, model, FLOAT32, largest_weight=WEIGHT).pages


def test_cache_and_temporaries_fit_into_what_is_free(monkeypatch: pytest.MonkeyPatch, model: ModelConfig) -> None:
    free, each = 4 << 30, page_bytes(model, 16, FLOAT32)
    found = pages(monkeypatch, model, free)
    rest = free - found * each
    assert WEIGHT < rest < 2 * WEIGHT


def test_nothing_left(monkeypatch: pytest.MonkeyPatch, model: ModelConfig) -> None:
    with pytest.raises(CapacityError, match="gpu_memory_utilization"):
        pages(monkeypatch, model, WEIGHT)


def test_a_number_of_pages_overrides(monkeypatch: pytest.MonkeyPatch, model: ModelConfig) -> None:
    assert pages(monkeypatch, model, WEIGHT, num_gpu_blocks_override=40) == 40


def test_state_of_recurrent_layers_comes_first(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    hybrid = vjax.load(checkpoint("lfm2", folder), use_tqdm_on_load=False)[0].config
    state, each = state_bytes(hybrid, 4), page_bytes(hybrid, 16, FLOAT32)
    assert state == 2 * (4 + 1) * (2 * 40) * 4  # layers, slots and the dummy, window of two inputs, float32
    room = {"kv_cache_memory_bytes": state + 5 * each}
    assert pages(monkeypatch, hybrid, 0, **room) == 5
    with pytest.raises(CapacityError, match=r"state of 4 requests.*lower max_num_seqs"):
        pages(monkeypatch, hybrid, 0, kv_cache_memory_bytes=state - 1)
