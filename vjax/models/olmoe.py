"""OLMoE (Muennighoff et al., 2024): norms over all queries and keys at once, and a mixture of experts in all layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.errors import ModelError
from vjax.models import llama, qwen2_moe
from vjax.models.config import ModelConfig, config_from_hf
from vjax.models.family import Family

DEFAULTS = {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "num_experts": 64, "num_experts_per_tok": 8}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf, "moe_intermediate_size": hf.get("intermediate_size")}
    if hf.get("clip_qkv") is not None:
        raise ModelError(f"config field 'clip_qkv' is {hf['clip_qkv']!r}; only null is supported.")
    bias = bool(hf.get("attention_bias", False))
    made = config_from_hf(hf, qk_norm="full", qkv_bias=bias, o_bias=bias, **qwen2_moe.mixture(hf))
    return made.with_changes(attention=tuple(replace(spec, norm_eps=made.norm_eps) for spec in made.attention))


FAMILY = Family(
    name="OLMoE",
    architectures=("OlmoeForCausalLM",),
    config=config,
    params=qwen2_moe.params,
    block=llama.block,
    gguf=("olmoe",),
)
