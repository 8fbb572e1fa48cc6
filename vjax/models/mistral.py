"""Mistral (Jiang et al., 2023): Llama with a window on every layer, which later releases leave out."""

from __future__ import annotations

from typing import Any

from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, positive
from vjax.models.family import Family

DEFAULTS = {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    window = None if hf["sliding_window"] is None else positive(hf, "sliding_window")
    return config_from_hf(hf).with_window(window)


FAMILY = Family(
    name="Mistral",
    architectures=("MistralForCausalLM",),
    config=config,
    params=llama.params,
    block=llama.block,
)
