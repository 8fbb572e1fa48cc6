"""OPT (Zhang et al., 2022): learned positions that begin at row 2, LayerNorm, biases, relu; the 350M model norms after
each half of a block instead of before, and its embedding is narrower than its layers."""

from __future__ import annotations

from typing import Any

import jax

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec
from vjax.layers.context import Context
from vjax.layers.paging import Cache
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, head_width, layer_count, positive
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, mlp_params, norm_params
from vjax.models.spec import Tree

DEFAULTS = {"max_position_embeddings": 2048, "tie_word_embeddings": True}


def config(hf: dict[str, Any]) -> ModelConfig:
    if not hf.get("layer_norm_elementwise_affine", True):
        raise ModelError("config field 'layer_norm_elementwise_affine' must be true.")
    hf = {**DEFAULTS, **hf, "intermediate_size": positive(hf, "ffn_dim")}
    hf["hidden_act"] = hf.get("activation_function") or "relu"
    bias, hidden = bool(hf.get("enable_bias", True)), positive(hf, "hidden_size")
    before, width = bool(hf.get("do_layer_norm_before", True)), positive(hf, "word_embed_proj_dim", hidden)
    scale = head_width(hf) ** -0.5
    return config_from_hf(
        hf,
        ropes=(),
        attention=tuple(AttentionSpec(scale, rope=None, pool_layer=i) for i in range(layer_count(hf))),
        norm="layer",
        norm_eps=1e-5,
        norm_after=not before,
        final_norm=before and not hf.get("_remove_final_layer_norm"),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        embed_width=width if width != hidden else None,
        position_offset=2,
    )


def params(config: ModelConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.decoder.layers.{i}"
        return {
            "attention_norm": norm_params(config, f"{prefix}.self_attn_layer_norm"),
            "attention": attention_params(config, f"{prefix}.self_attn", o="out_proj"),
            "mlp_norm": norm_params(config, f"{prefix}.final_layer_norm"),
            "mlp": mlp_params(config, prefix),
        }

    layers = tuple(layer(i) for i in range(config.num_layers))
    final = "final_layer_norm" if config.final_norm else None
    return decoder_params(config, layers, "model.decoder.", final_norm=final)


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: ModelConfig, layer: int,
) -> tuple[jax.Array, jax.Array | None, Cache | None]:  # fmt: skip
    form = llama.post_norm_block if config.norm_after else llama.block
    return form(w, x, update, ctx, cache, config, layer)


FAMILY = Family(
    name="OPT",
    architectures=("OPTForCausalLM",),
    config=config,
    params=params,
    block=block,
    optional_prefix="model.",
)
