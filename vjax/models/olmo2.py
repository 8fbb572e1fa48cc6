"""OLMo 2 (OLMo Team, 2024): norms only on what each half of a block puts out, and over all queries and keys at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax

from vjax.layers.attention import self_attention
from vjax.layers.context import Context
from vjax.layers.mlp import mlp
from vjax.layers.norms import norm
from vjax.layers.paging import Cache
from vjax.models.config import ModelConfig, config_from_hf
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Tree

DEFAULTS = {"rope_theta": 500000.0, "rms_norm_eps": 1e-5}


def config(hf: dict[str, Any]) -> ModelConfig:
    bias = bool(hf.get("attention_bias", False))
    made = config_from_hf({**DEFAULTS, **hf}, qkv_bias=bias, o_bias=bias, qk_norm="full")
    return made.with_changes(attention=tuple(replace(spec, norm_eps=made.norm_eps) for spec in made.attention))


def params(config: ModelConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        return {
            "attention": attention_params(config, f"{prefix}.self_attn"),
            "attention_out_norm": norm_params(config, f"{prefix}.post_attention_layernorm"),
            "mlp": gated_mlp_params(config, f"{prefix}.mlp"),
            "mlp_out_norm": norm_params(config, f"{prefix}.post_feedforward_layernorm"),
        }

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)))


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: ModelConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    x = x if update is None else x + update
    attended, cache = self_attention(w["attention"], x, ctx, cache, config.attention[layer])
    x = x + norm(attended, w["attention_out_norm"], config.norm_eps)
    return x, norm(mlp(w["mlp"], x, config.hidden_act), w["mlp_out_norm"], config.norm_eps), cache


FAMILY = Family(
    name="OLMo 2",
    architectures=("Olmo2ForCausalLM",),
    config=config,
    params=params,
    block=block,
    gguf=("olmo2",),  # OLMo 3 too
)
