"""Qwen 3 dense (Yang et al., 2025): Llama with norms on every head's queries and keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf
from vjax.models.family import Family
from vjax.models.qwen2 import with_windows


def config(hf: dict[str, Any]) -> ModelConfig:
    bias = bool(hf.get("attention_bias", False))
    config = config_from_hf({"head_dim": 128, **hf}, qkv_bias=bias, o_bias=bias, qk_norm="head")
    attention = tuple(replace(spec, norm_eps=config.norm_eps) for spec in config.attention)
    return with_windows(hf, config.with_changes(attention=attention))


FAMILY = Family(
    name="Qwen3",
    architectures=("Qwen3ForCausalLM",),
    gguf=("qwen3",),
    config=config,
    params=llama.params,
    block=llama.block,
)
