"""Granite 3 (IBM, 2024): Llama with constants of the config on the embedding, the attention scores, what each half of a
block adds, and the logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.errors import ModelError
from vjax.models import llama
from vjax.models.config import ModelConfig
from vjax.models.family import Family


def config(hf: dict[str, Any]) -> ModelConfig:
    return scaled(hf, llama.config(hf))


def scaled(hf: dict[str, Any], config: ModelConfig) -> ModelConfig:
    """With Granite's four constants."""

    def number(name: str) -> float:
        value = hf.get(name, 1.0)
        if not isinstance(value, (int, float)) or value <= 0:
            raise ModelError(f"config field {name!r} must be a positive number, got {value!r}.")
        return float(value)

    scale = number("attention_multiplier")
    return config.with_changes(
        attention=tuple(replace(spec, scale=scale) for spec in config.attention),
        embed_scale=number("embedding_multiplier"),
        residual_scale=number("residual_multiplier"),
        logit_scale=1.0 / number("logits_scaling"),
    )


FAMILY = Family(
    name="Granite 3",
    architectures=("GraniteForCausalLM",),
    config=config,
    params=llama.params,
    block=llama.block,
    gguf=("granite",),
    gguf_tensor=llama.gguf_tensor,
)
