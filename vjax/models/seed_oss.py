"""Seed-OSS (ByteDance, 2025): Llama with biases on queries, keys and values."""

from __future__ import annotations

from typing import Any

from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf
from vjax.models.family import Family


def config(hf: dict[str, Any]) -> ModelConfig:
    return config_from_hf(
        {"head_dim": 128, "num_key_value_heads": 8, **hf},
        qkv_bias=bool(hf.get("attention_bias", True)),
        o_bias=bool(hf.get("attention_out_bias", False)),
        mlp_bias=bool(hf.get("mlp_bias", False)),
    )


FAMILY = Family(
    name="Seed-OSS",
    architectures=("SeedOssForCausalLM",),
    config=config,
    params=llama.params,
    block=llama.block,
    gguf=("seed_oss",),
)
