"""Command R7B and A (Cohere, 2025): Command R with three windowed layers to one full one, which has no positions."""

from __future__ import annotations

from typing import Any

from vjax.layers.attention import AttentionSpec
from vjax.models import cohere, llama
from vjax.models.config import ModelConfig, positive
from vjax.models.family import Family


def config(hf: dict[str, Any]) -> ModelConfig:
    head_dim = hf.get("head_dim") or positive(hf, "hidden_size") // positive(hf, "num_attention_heads")
    layers, window = positive(hf, "num_hidden_layers"), positive(hf, "sliding_window", 4096)
    pattern = positive(hf, "sliding_window_pattern", 4)
    kinds = hf.get("layer_types") or [
        "full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)
    ]
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
