"""Which layers share a page table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.goldens import case_names, load_case
from vjax import shapes
from vjax.models.config import ModelConfig
from vjax.models.model import Model
from vjax.models.page_groups import grouped

PLAIN = Model.from_hf(shapes.config("llama-3.2-1b")).config  # 16 layers
SHAPES = {
    "llama-3.1-8b": ((None,), 32),
    "phi-3-mini-4k": ((2047,), 32),
    "gemma-3-1b": ((512,) * 6 + (None,), 4),  # 22 layers with a window, 4 without
    "gemma-3-27b": ((1024,) * 5 + (None,), 11),  # 52 and 10: six groups of 10 would leave 8 places unused
    "gpt-oss-20b": ((128, None), 12),
    "qwen3-next-80b-a3b": ((None,), 12),
}


def with_windows(*windows: int | None) -> ModelConfig:
    attention = (replace(spec, window=window) for spec, window in zip(PLAIN.attention, windows, strict=True))
    return grouped(PLAIN.with_changes(attention=tuple(attention)))


@pytest.mark.parametrize("name", SHAPES)
def test_published_models(name: str) -> None:
    config = Model.from_hf(shapes.config(name)).config
    windows, layers = SHAPES[name]
    assert (config.windows, config.pools["full"].num_layers) == (windows, layers)


@pytest.mark.parametrize("name", case_names())
def test_no_two_layers_share_a_place(name: str) -> None:
    config = Model.from_hf(load_case(name).config).config
    attending = getattr(config, "attention_layers", range(config.num_layers))
    own = [config.attention[i] for i in attending if not getattr(config.attention[i], "stored", False)]
    assert len({(spec.pool, spec.group, spec.pool_layer) for spec in own}) == len(own)
    assert {spec.group for spec in own} <= set(range(len(config.windows)))
    for spec in own:
        assert spec.pool_layer < config.pools[spec.pool].num_layers
        window = config.windows[spec.group]  # of a group: what any of its layers may see
        assert window is None or (spec.window is not None and spec.window <= window)


def test_all_kinds_together_where_groups_would_waste_more() -> None:
    config = with_windows(*[None] * 15, 7)
    assert (config.windows, config.pools["full"].num_layers) == ((None,), 16)


def test_a_window_beyond_the_context_is_none() -> None:
    assert with_windows(*[PLAIN.max_position, None] * 8).windows == (None,)


def test_two_windows() -> None:
    assert with_windows(*[4, 8, 8, 8] * 4).windows == (4, 8, 8, 8)


def test_as_many_windows_as_layers() -> None:
    assert with_windows(*range(1, 17)).windows == (16,)


def test_other_pools_keep_all_pages() -> None:
    """Every layer of DeepSeek-V4 has a window, and compressed entries of the same pages lie far behind it."""
    assert Model.from_hf(load_case("deepseek-v4").config).config.windows == (None,)
