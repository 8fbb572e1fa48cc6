"""Ernie 4.5, dense (Baidu, 2025): Llama whose rope turns neighbouring channels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf
from vjax.models.family import Family

DEFAULTS = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
}


def config(hf: dict[str, Any]) -> ModelConfig:
    bias = bool(hf.get("use_bias", False))
    made = config_from_hf({**DEFAULTS, **hf}, qkv_bias=bias, o_bias=bias, mlp_bias=bias)
    return made.with_changes(ropes=tuple(replace(rope, interleaved=True) for rope in made.ropes))


FAMILY = Family(
    name="Ernie 4.5",
    architectures=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    config=config,
    params=llama.params,
    block=llama.block,
    gguf=("ernie4_5",),
)
