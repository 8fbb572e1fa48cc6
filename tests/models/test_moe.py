"""Mixtures of experts: shapes of published models."""

from __future__ import annotations

import pytest

from vjax.plan import plan

# Billions of parameters, as their cards say.
PUBLISHED = {
    "gpt-oss-20b": 20.91,
    "gpt-oss-120b": 116.83,
    "glm-4.5": 352.8,  # and 3.9 that predict a further token
    "glm-4.5-air": 106.9,
    "minimax-m2": 228.7,
    "granite-3.1-1b-a400m": 1.334,
    "laguna-xs.2": 33.4,
    "ernie-4.5-21b-a3b": 21.83,
    "olmoe-1b-7b": 6.92,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    assert plan(name).parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=2e-3)
