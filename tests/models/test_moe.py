"""Mixtures of experts: shapes of published models."""

from __future__ import annotations

import pytest

from vjax.plan import plan

# Billions of parameters, as their cards say.
PUBLISHED = {"gpt-oss-20b": 20.91, "gpt-oss-120b": 116.83}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    assert plan(name).parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=2e-3)
