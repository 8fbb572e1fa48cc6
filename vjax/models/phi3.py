"""Phi-3, 3.5 and 4 (Abdin et al., 2024): Llama with qkv and gate/up as one tensor each on disk, a window on every layer
of some, LongRoPE, and in Phi-4-mini a rope on part of each head."""

from __future__ import annotations

from typing import Any

from vjax.layers.attention import AttentionSpec
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, positive
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Tree

DEFAULTS = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    scaling = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if (
        isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) == "yarn"
    ):  # early files say so and mean LongRoPE
        hf["rope_scaling"], hf["rope_parameters"] = {**scaling, "rope_type": "longrope"}, None
    config = config_from_hf(hf)
    window = positive(hf, "sliding_window") if hf.get("sliding_window") is not None else None
    scale = config.head_dim**-0.5
    layers = tuple(AttentionSpec(scale, window=window, pool_layer=i) for i in range(config.num_layers))
    return config.with_changes(attention=layers)


def params(config: ModelConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        return {
            "attention_norm": norm_params(config, f"{prefix}.input_layernorm"),
            "attention": attention_params(config, f"{prefix}.self_attn", fused="qkv_proj"),
            "mlp_norm": norm_params(config, f"{prefix}.post_attention_layernorm"),
            "mlp": gated_mlp_params(config, f"{prefix}.mlp", fused="gate_up_proj"),
        }

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)))


FAMILY = Family(
    name="Phi-3",
    architectures=("Phi3ForCausalLM",),
    gguf=("phi3",),
    config=config,
    params=params,
    block=llama.block,
)
