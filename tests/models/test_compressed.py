"""Models with pools of several shapes: DeepSeek-V4's compressed entries, Gemma 4's two kinds of heads."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vjax
from tests.engine.driver import Driver, greedy_graphs
from tests.goldens import checkpoint, load_case
from vjax.config import EngineConfig
from vjax.engine.state import page_bytes
from vjax.errors import ModelError
from vjax.layers import compressed
from vjax.models.model import Model
from vjax.plan import plan

OPTIONS: dict[str, Any] = dict(max_num_seqs=4, max_num_batched_tokens=7, max_model_len=64, warmup="lazy")
FLOAT32 = jnp.dtype(jnp.float32)


def test_what_pages_hold() -> None:
    v4 = Model.from_hf(load_case("deepseek-v4").config).config
    # Four layers keep every token's 16 channels; entries of two stand for 3 tokens, with keys of 14 channels to choose
    # by; those of one stand for 5.
    assert page_bytes(v4, 16, FLOAT32) == 4 * (4 * 16 * 16 + 2 * 6 * (16 + 14) + 4 * 16)
    gemma = Model.from_hf(load_case("gemma4").config).config
    # Of six layers three share: two with a window and one without keep keys and values.
    assert page_bytes(gemma, 16, FLOAT32) == 4 * 16 * 2 * 2 * (2 * 12 + 20)


def test_entries_lie_in_pages_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages whose size is no multiple of what an entry stands for; entries in more than one block."""
    monkeypatch.setattr(compressed, "BLOCK", 4)
    golden = load_case("deepseek-v4")
    path = checkpoint(golden.name, tmp_path)
    config = EngineConfig(model=str(path), block_size=7, use_tqdm_on_load=False, **OPTIONS)
    with greedy_graphs():
        driver = Driver(config, few_graphs=True)
        assert driver.greedy(golden.prompts, golden.greedy.shape[1]) == golden.greedy.tolist()
        driver.close()


def test_the_mean_of_the_streams_can_be_captured(tmp_path: Path) -> None:
    golden = load_case("deepseek-v4")
    model, params = vjax.load(checkpoint(golden.name, tmp_path), use_tqdm_on_load=False)
    apply = jax.jit(partial(model.apply, capture=("residual",)))
    logits, captured = apply(params, jnp.asarray(golden.tokens[:, :9]))
    assert captured["residual"].shape == (2, 5, 9, 36)
    np.testing.assert_allclose(model.unembed(params, captured["residual"][:, -1]), logits, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gemma-4-e2b", 4.63),
        ("gemma-4-e4b", 7.46),
        ("gemma-4-31b", 30.7),
        ("gemma-4-26b-a4b", 25.23),
        ("deepseek-v4-flash", 284.3),
        ("deepseek-v4-pro", 1573.0),
    ],
)
def test_published_sizes(name: str, billions: float) -> None:
    assert plan(name, devices=8).parameters / 1e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize(
    ("case", "field", "value"),
    [
        ("gemma4", "num_kv_shared_layers", 5),
        ("gemma4", "num_kv_shared_layers", 6),
        ("gemma4", "global_head_dim", 9),
        ("gemma4", "per_layer_config", {"0": {"head_dim": 8}}),
        ("gemma4", "rope_parameters", {"full_attention": {}}),
        ("deepseek-v4", "o_groups", 3),
        ("deepseek-v4", "mlp_layer_types", ["moe"]),
        ("deepseek-v4", "qk_rope_head_dim", 16),
        ("deepseek-v4", "num_hash_layers", -1),
        ("deepseek-v4", "scoring_func", "tanh"),
    ],
)
def test_what_configs_may_not_say(case: str, field: str, value: object) -> None:
    with pytest.raises(ModelError, match=field):
        Model.from_hf({**load_case(case).config, field: value})
