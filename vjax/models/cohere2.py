"""Command R7B and A (Cohere, 2025): Command R with three windowed layers to one full one, which has no positions."""

from __future__ import annotations

from typing import Any

from vjax.layers.attention import AttentionSpec
from vjax.models import cohere, llama
from vjax.models.config import ModelConfig, head_width, layer_count, positive
from vjax.models.family import Family
from vjax.models.hybrid import layer_types

KINDS, PATTERN = ("sliding_attention", "full_attention"), "sliding_window_pattern"


def config(hf: dict[str, Any]) -> ModelConfig:
    head_dim, window, pattern = head_width(hf), positive(hf, "sliding_window", 4096), positive(hf, PATTERN, 4)
    default = [KINDS[(i + 1) % pattern == 0] for i in range(layer_count(hf))]
    kinds = layer_types(hf, KINDS, default)
    attention = tuple(
        AttentionSpec(head_dim**-0.5, window=window, pool_layer=i)
        if kind == "sliding_attention"
        else AttentionSpec(head_dim**-0.5, rope=None, pool_layer=i)
        for i, kind in enumerate(kinds)
    )
    return cohere.config(hf, attention=attention, qk_norm=None)


FAMILY = Family(
    name="Cohere 2 (Command R7B, A)",
    architectures=("Cohere2ForCausalLM",),
    gguf=("cohere2",),
    config=config,
    params=cohere.params,
    block=llama.parallel_block,
)
