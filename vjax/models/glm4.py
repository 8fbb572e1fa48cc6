"""GLM-4 (GLM Team, 2024): a rope of neighbouring channels on half of each head, gate and up as one tensor on disk. The
first release is a Llama otherwise; GLM-4-0414 adds norms on what each half of a block puts out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax

from vjax.layers.context import Context
from vjax.layers.paging import Cache
from vjax.models import gemma3, llama
from vjax.models.config import ModelConfig, config_from_hf
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Tree

DEFAULTS = {"num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-7}
SANDWICH = "Glm4ForCausalLM"


def config(hf: dict[str, Any]) -> ModelConfig:
    made = config_from_hf({**DEFAULTS, **hf}, qkv_bias=bool(hf.get("attention_bias", True)))
    return made.with_changes(ropes=tuple(replace(rope, interleaved=True) for rope in made.ropes))


def params(config: ModelConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        tree = {
            "attention_norm": norm_params(config, f"{prefix}.input_layernorm"),
            "attention": _attention_params(config, f"{prefix}.self_attn"),
            "mlp_norm": norm_params(config, f"{prefix}.post_attention_layernorm"),
            "mlp": gated_mlp_params(config, f"{prefix}.mlp", fused="gate_up_proj"),
        }
        if config.architecture == SANDWICH:
            tree["attention_out_norm"] = norm_params(config, f"{prefix}.post_self_attn_layernorm")
            tree["mlp_out_norm"] = norm_params(config, f"{prefix}.post_mlp_layernorm")
        return tree

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)))


def _attention_params(config: ModelConfig, prefix: str) -> Tree:
    """Queries, keys and values apart, or together as a GGUF file of the first release has them."""
    apart = attention_params(config, prefix)
    together = attention_params(config, prefix, fused="query_key_value")
    return {name: replace(param, or_else=together[name]) for name, param in apart.items()}


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: ModelConfig, layer: int,
) -> tuple[jax.Array, jax.Array | None, Cache | None]:  # fmt: skip
    inner = gemma3.block if "mlp_out_norm" in w else llama.block
    return inner(w, x, update, ctx, cache, config, layer)


FAMILY = Family(
    name="GLM-4",
    architectures=(SANDWICH, "GlmForCausalLM"),
    config=config,
    params=params,
    block=block,
    gguf=("glm4", "chatglm"),
)
