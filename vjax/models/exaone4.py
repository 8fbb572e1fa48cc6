"""EXAONE 4 (LG AI Research, 2025): OLMo 2's block with norms of each head; windowed layers have positions, the full
ones between them have none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.errors import ModelError
from vjax.models import olmo2
from vjax.models.config import ModelConfig, config_from_hf, positive
from vjax.models.family import Family
from vjax.models.hybrid import layer_types

WINDOWED, FULL = "sliding_attention", "full_attention"


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {"rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4, **hf}
    made = config_from_hf(hf, qk_norm="head")
    window = None if hf["sliding_window"] is None else positive(hf, "sliding_window")
    kinds = layer_types(hf, (WINDOWED, FULL), _pattern(hf, made.num_layers, window))
    attention = tuple(
        replace(
            spec,
            norm_eps=made.norm_eps,
            window=window if kind == WINDOWED else None,
            rope=None if window and kind == FULL else 0,
        )
        for spec, kind in zip(made.attention, kinds, strict=True)
    )
    return made.with_changes(attention=attention)


def _pattern(hf: dict[str, Any], layers: int, window: int | None) -> list[str]:
    """`LLLG` or 4: three windowed layers, then a full one."""
    pattern = hf["sliding_window_pattern"]
    if window is None:
        return [FULL] * layers
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return [WINDOWED if pattern[i % len(pattern)] == "L" and i < layers - 1 else FULL for i in range(layers)]
    if isinstance(pattern, int) and pattern > 0:
        return [FULL if (i + 1) % pattern == 0 else WINDOWED for i in range(layers)]
    raise ModelError(f"config field 'sliding_window_pattern' must be a number or a word of L and G, got {pattern!r}.")


FAMILY = Family(
    name="EXAONE 4",
    architectures=("Exaone4ForCausalLM",),
    config=config,
    params=olmo2.params,
    block=olmo2.block,
    gguf=("exaone4",),
)
