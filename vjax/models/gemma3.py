"""Gemma 3, text (Gemma Team, 2025): five windowed layers to one full layer, each kind with its rope; norms before and
after both halves of a block; weights of norms mean 1 + w."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from vjax.layers.attention import AttentionSpec, self_attention
from vjax.layers.context import Context
from vjax.layers.mlp import mlp
from vjax.layers.norms import add_norm, norm
from vjax.layers.paging import Cache
from vjax.layers.rope import rope_from_hf
from vjax.models.config import ModelConfig, config_from_hf, positive
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Tree

# Published configs leave out what equals Hugging Face's defaults for Gemma 3.
DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "max_position_embeddings": 131072,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    head_dim, layers = positive(hf, "head_dim"), positive(hf, "num_hidden_layers")
    pattern = hf.get("sliding_window_pattern") or hf.get("_sliding_window_pattern") or 6
    kinds = hf.get("layer_types") or [
        "full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)
    ]
    ropes = hf.get("rope_parameters") or {}
    if "full_attention" in ropes:
        full = rope_from_hf(hf, head_dim, parameters=ropes["full_attention"])
        local = rope_from_hf(hf, head_dim, parameters=ropes["sliding_attention"])
    else:
        full = rope_from_hf({"rope_theta": 1e6, **hf}, head_dim)
        local = rope_from_hf({}, head_dim, theta=hf.get("rope_local_base_freq") or 10000.0)
    eps = float(hf.get("rms_norm_eps") or 1e-6)
    scale = float(hf["query_pre_attn_scalar"]) ** -0.5
    attention = tuple(
        AttentionSpec(scale, rope=0, norm_eps=eps, norm_offset=1.0, pool_layer=i)
        if kind == "full_attention"
        else AttentionSpec(scale, rope=1, window=hf["sliding_window"], norm_eps=eps, norm_offset=1.0, pool_layer=i)
        for i, kind in enumerate(kinds)
    )
    return config_from_hf(
        hf,
        ropes=(full, local),
        attention=attention,
        qk_norm="head",
        norm_offset=1.0,
        norm_eps=eps,
        hidden_act=hf["hidden_activation"],
        embed_scale=float(positive(hf, "hidden_size")) ** 0.5,
        final_softcap=hf.get("final_logit_softcapping"),
    )


def params(config: ModelConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        return {
            "attention_norm": norm_params(config, f"{prefix}.input_layernorm"),
            "attention": attention_params(config, f"{prefix}.self_attn"),
            "attention_out_norm": norm_params(config, f"{prefix}.post_attention_layernorm"),
            "mlp_norm": norm_params(config, f"{prefix}.pre_feedforward_layernorm"),
            "mlp": gated_mlp_params(config, f"{prefix}.mlp"),
            "mlp_out_norm": norm_params(config, f"{prefix}.post_feedforward_layernorm"),
        }

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)))


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: ModelConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    eps, offset = config.norm_eps, config.norm_offset
    x, normed = add_norm(x, update, w["attention_norm"], eps, ctx, offset)
    attended, cache = self_attention(w["attention"], normed, ctx, cache, config.attention[layer])
    attended = norm(attended, w["attention_out_norm"], eps, offset)
    x, normed = add_norm(x, attended, w["mlp_norm"], eps, ctx, offset)
    return x, norm(mlp(w["mlp"], normed, config.hidden_act), w["mlp_out_norm"], eps, offset), cache


def gguf_tensor(name: str, array: np.ndarray, config: ModelConfig) -> np.ndarray:
    """llama.cpp stores norm weights with the 1 already added."""
    return array - 1.0 if name.endswith("norm.weight") else array


FAMILY = Family(
    name="Gemma 3 (text)",
    architectures=("Gemma3ForCausalLM",),
    gguf=("gemma3",),
    config=config,
    params=params,
    block=block,
    gguf_tensor=gguf_tensor,
)
