"""Phi-1, 1.5 and 2 (Gunasekar et al., 2023): attention and MLP side by side on one LayerNorm, a rope on half of each
head, biases everywhere, even on the head."""

from __future__ import annotations

from typing import Any

from vjax.layers.attention import AttentionSpec
from vjax.layers.rope import rope_from_hf
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, head_width, layer_count, number, rotary_dim
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, mlp_params, norm_params
from vjax.models.spec import Tree

DEFAULTS = {"hidden_act": "gelu_new", "max_position_embeddings": 2048}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    head_dim, eps, layers = head_width(hf), number(hf, "layer_norm_eps", 1e-5), range(layer_count(hf))
    return config_from_hf(
        hf,
        norm="layer",
        norm_eps=eps,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        head_bias=True,
        qk_norm="head" if hf.get("qk_layernorm") else None,
        ropes=(rope_from_hf(hf, rotary_dim(hf, head_dim, default=0.5)),),
        attention=tuple(AttentionSpec(head_dim**-0.5, norm_eps=eps, pool_layer=i) for i in layers),
    )


def params(config: ModelConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        return {
            "attention_norm": norm_params(config, f"{prefix}.input_layernorm"),
            "attention": attention_params(config, f"{prefix}.self_attn", o="dense", qk_norm="layernorm"),
            "mlp": mlp_params(config, f"{prefix}.mlp"),
        }

    layers = tuple(layer(i) for i in range(config.num_layers))
    return decoder_params(config, layers, final_norm="final_layernorm")


FAMILY = Family(
    name="Phi",
    architectures=("PhiForCausalLM",),
    gguf=("phi2",),
    config=config,
    params=params,
    block=llama.parallel_block,
)
