"""Command R and R+ (Cohere, 2024): attention and MLP side by side on one LayerNorm without biases, interleaved rope,
scaled logits, and in R+ norms of every query and key head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.layers.attention import AttentionSpec
from vjax.layers.rope import rope_from_hf
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, head_width, layer_count, number
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Param, Tree, vector

DEFAULTS = {
    "rope_theta": 500000.0,
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def config(hf: dict[str, Any], **changes: Any) -> ModelConfig:
    """`changes`: what Cohere 2 knows better."""
    hf = {**DEFAULTS, **hf}
    head_dim = head_width(hf)
    eps, bias = number(hf, "layer_norm_eps"), bool(hf.get("attention_bias", False))
    layers = range(layer_count(hf))
    fields: dict[str, Any] = dict(
        norm="layer",
        norm_bias=False,
        norm_eps=eps,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="heads" if hf.get("use_qk_norm") else None,
        ropes=(replace(rope_from_hf(hf, head_dim), interleaved=True),),
        attention=tuple(AttentionSpec(head_dim**-0.5, norm_eps=eps, pool_layer=i) for i in layers),
        logit_scale=number(hf, "logit_scale"),
    )
    return config_from_hf(hf, **{**fields, **changes})


def params(config: ModelConfig) -> Tree:
    def head_norms(name: str, heads: int) -> dict[str, Param]:
        return {"weight": vector(f"{name}.weight", (heads, config.head_dim), ("heads", None))}

    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        attention = attention_params(config, f"{prefix}.self_attn")
        if config.qk_norm:
            attention["q_norm"] = head_norms(f"{prefix}.self_attn.q_norm", config.num_heads)
            attention["k_norm"] = head_norms(f"{prefix}.self_attn.k_norm", config.num_kv_heads)
        return {
            "attention_norm": norm_params(config, f"{prefix}.input_layernorm"),
            "attention": attention,
            "mlp": gated_mlp_params(config, f"{prefix}.mlp"),
        }

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)))


FAMILY = Family(
    name="Cohere (Command R)",
    architectures=("CohereForCausalLM",),
    gguf=("command-r",),
    config=config,
    params=params,
    block=llama.parallel_block,
)
