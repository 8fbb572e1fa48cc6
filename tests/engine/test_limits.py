"""How the cache is sized, with a device that says how much memory it has."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import vjax
from tests.goldens import case_names, checkpoint
from vjax.config import EngineConfig
from vjax.engine import limits
from vjax.engine.state import page_bytes
from vjax.errors import CapacityError
from vjax.models.config import ModelConfig

FLOAT32 = jnp.dtype(jnp.float32)
WEIGHT = 1 << 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return vjax.load(checkpoint(case_names()[0], tmp_path_factory.mktemp("model")))[0].config


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
