"""Qwen 3 MoE (Yang et al., 2025): Qwen 3 with a mixture of experts in some layers, and no expert for all tokens."""

from __future__ import annotations

from typing import Any

from vjax.models import llama, qwen2_moe, qwen3
from vjax.models.config import ModelConfig
from vjax.models.family import Family

DEFAULTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    return qwen3.config(hf).with_changes(**qwen2_moe.mixture(hf))


FAMILY = Family(
    name="Qwen3 MoE",
    architectures=("Qwen3MoeForCausalLM",),
    config=config,
    params=qwen2_moe.params,
    block=llama.block,
    gguf=("qwen3moe",),
)
