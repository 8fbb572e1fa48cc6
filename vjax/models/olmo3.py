"""OLMo 3 (OLMo Team, 2025): OLMo 2 with a window on three of four layers; only the full ones stretch their rope."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.layers.rope import rope_from_hf
from vjax.models import olmo2
from vjax.models.config import ModelConfig, positive
from vjax.models.family import Family
from vjax.models.hybrid import layer_types

WINDOWED, FULL = "sliding_attention", "full_attention"


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**olmo2.DEFAULTS, "sliding_window": 4096, **hf}
    made = olmo2.config({**hf, "rope_scaling": None, "rope_parameters": None})
    kinds = layer_types(hf, (WINDOWED, FULL), [FULL if (i + 1) % 4 == 0 else WINDOWED for i in range(made.num_layers)])
    given = hf.get("rope_parameters") or {}
    full = given.get(FULL) or {**(hf.get("rope_scaling") or {}), "rope_theta": hf["rope_theta"]}
    # The reference gives windowed layers the default base whatever `rope_theta` says; published models have both equal.
    windowed = given.get(WINDOWED) or {"rope_theta": hf["rope_theta"]}
    ropes = tuple(rope_from_hf(hf, made.head_dim, parameters=parameters) for parameters in (full, windowed))
    window = positive(hf, "sliding_window")
    attention = tuple(
        spec if kind == FULL else replace(spec, rope=1, window=window)
        for spec, kind in zip(made.attention, kinds, strict=True)
    )
    return made.with_changes(ropes=ropes, attention=attention)


FAMILY = Family(
    name="OLMo 3",
    architectures=("Olmo3ForCausalLM",),
    config=config,
    params=olmo2.params,
    block=olmo2.block,
)
