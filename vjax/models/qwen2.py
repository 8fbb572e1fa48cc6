"""Qwen 2 and 2.5 (Yang et al., 2024): Llama with biases on queries, keys and values, and optional windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf
from vjax.models.family import Family


def config(hf: dict[str, Any]) -> ModelConfig:
    return with_windows(hf, config_from_hf(hf, qkv_bias=True))


def with_windows(hf: dict[str, Any], config: ModelConfig) -> ModelConfig:
    """Qwen's `use_sliding_window`: layers from `max_window_layers` on see only the newest keys."""
    window = hf.get("sliding_window")
    if not hf.get("use_sliding_window") or not window:
        return config
    first = hf.get("max_window_layers", 28)
    kinds = hf.get("layer_types") or [
        "sliding_attention" if i >= first else "full_attention" for i in range(config.num_layers)
    ]
    attention = tuple(
        replace(spec, window=window) if kind == "sliding_attention" else spec
        for spec, kind in zip(config.attention, kinds, strict=True)
    )
    return config.with_changes(attention=attention)


FAMILY = Family(
    name="Qwen2",
    architectures=("Qwen2ForCausalLM",),
    gguf=("qwen2",),
    config=config,
    params=llama.params,
    block=llama.block,
)
