"""Ropes that go by the longest sequence a model is to take."""

from __future__ import annotations

import numpy as np
import pytest

from vjax.errors import ModelError
from vjax.layers.rope import rope_from_hf
from vjax.models.model import Model

LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0]}
PHI3 = {
    "architectures": ["Phi3ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "original_max_position_embeddings": 16,
    "max_position_embeddings": 64,
    "rope_scaling": LONGROPE,
}


@pytest.mark.parametrize(("length", "factors"), [(None, [4, 8]), (17, [4, 8]), (16, [1, 2])])
def test_longrope_takes_the_long_factors_beyond_the_original_length(length: int | None, factors: list[int]) -> None:
    config = Model.from_hf(PHI3).config
    [rope] = (config.for_length(length) if length else config).ropes
    np.testing.assert_allclose(rope.frequencies() * factors, [1.0, 0.01], rtol=1e-6)
    assert rope.attention_factor == pytest.approx((1 + np.log(4) / np.log(16)) ** 0.5)


def test_longrope_wants_a_factor_for_every_frequency() -> None:
    with pytest.raises(ModelError, match="short_factor"):
        Model.from_hf({**PHI3, "rope_scaling": {**LONGROPE, "short_factor": [1.0]}})


@pytest.mark.parametrize(("length", "base"), [(16, 100.0), (17, 100.0 * 7.0**2)])
def test_dynamic_scaling_has_one_base_beyond_the_original_length(length: int, base: float) -> None:
    scaling = {"type": "dynamic", "factor": 3.0, "original_max_position_embeddings": 16}
    hf = {"rope_theta": 100.0, "rope_scaling": scaling, "max_position_embeddings": length}
    np.testing.assert_allclose(rope_from_hf(hf, 4).frequencies(), [1.0, base**-0.5], rtol=1e-6)
