"""ModernBERT (Warner et al., 2024): attention to both sides, two layers with a window after each full one, a rope for
either kind, gated MLPs, norms before each half of a block but the first."""

from __future__ import annotations

from typing import Any

import jax

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec, self_attention
from vjax.layers.context import Context
from vjax.layers.mlp import mlp
from vjax.layers.norms import add_norm
from vjax.layers.paging import Cache
from vjax.layers.rope import rope_from_hf
from vjax.models.config import ModelConfig, config_from_hf, head_width, layer_count, number, positive
from vjax.models.family import Family
from vjax.models.hybrid import layer_types
from vjax.models.parts import attention_params, decoder_params, gated_mlp_params, head_params, norm_params
from vjax.models.spec import Tree

KINDS = ("full_attention", "sliding_attention")
DEFAULTS = {"max_position_embeddings": 8192, "local_attention": 128, "norm_eps": 1e-5}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf, "tie_word_embeddings": True, "hidden_act": hf.get("hidden_activation") or "gelu"}
    head_dim, layers = head_width(hf), layer_count(hf)
    every, reach = positive(hf, "global_attn_every_n_layers", 3), positive(hf, "local_attention") // 2
    kinds = layer_types(hf, KINDS, [KINDS[i % every > 0] for i in range(layers)])
    ropes = hf.get("rope_parameters") or {}
    if not isinstance(ropes, dict):
        raise ModelError("config field 'rope_parameters' must hold those of every kind of layer.")

    def rope(kind: str, theta: float) -> Any:
        scaling = ropes.get(kind) or hf.get("rope_scaling") or {}
        if not isinstance(scaling, dict):
            raise ModelError(f"the rope of {kind} must be an object, got {scaling!r}.")
        return rope_from_hf(hf, head_dim, parameters=scaling, theta=scaling.get("rope_theta") or theta)

    full = rope("full_attention", number(hf, "global_rope_theta", 160000.0))
    local = rope("sliding_attention", number(hf, "local_rope_theta", 10000.0))
    pooling = hf.get("classifier_pooling") or "cls"
    if pooling not in ("cls", "mean"):
        raise ModelError(f"config field 'classifier_pooling' must be cls or mean, got {pooling!r}.")
    bias = bool(hf.get("attention_bias", False))
    return config_from_hf(
        hf,
        ropes=(full, local),
        attention=tuple(
            AttentionSpec(head_dim**-0.5, rope=1, window=reach + 1, causal=False)
            if kind == "sliding_attention"
            else AttentionSpec(head_dim**-0.5, rope=0, causal=False)
            for kind in kinds
        ),
        norm="layer",
        norm_eps=number(hf, "norm_eps"),
        norm_bias=bool(hf.get("norm_bias", False)),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bool(hf.get("mlp_bias", False)),
        pooling=pooling,
        head_act=hf.get("classifier_activation") or "gelu",
        dense_bias=bool(hf.get("classifier_bias", False)),
    )


def params(config: ModelConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        weights = {
            "attention": attention_params(config, f"{prefix}.attn", fused="Wqkv", o="Wo"),
            "mlp_norm": norm_params(config, f"{prefix}.mlp_norm"),
            "mlp": gated_mlp_params(config, f"{prefix}.mlp", fused="Wi", down="Wo"),
        }
        return weights if i == 0 else {**weights, "attention_norm": norm_params(config, f"{prefix}.attn_norm")}

    layers = tuple(layer(i) for i in range(config.num_layers))
    tree = decoder_params(config, layers, embed="embeddings.tok_embeddings", final_norm="final_norm")
    return {**tree, "embed_norm": norm_params(config, "model.embeddings.norm")}


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: ModelConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    normed = x  # the embedding is normed already
    if layer:
        x, normed = add_norm(x, update, w["attention_norm"], config.norm_eps, ctx)
    attended, cache = self_attention(w["attention"], normed, ctx, cache, config.attention[layer])
    x, normed = add_norm(x, attended, w["mlp_norm"], config.norm_eps, ctx)
    return x, mlp(w["mlp"], normed, config.hidden_act), cache


def classifier(config: ModelConfig, labels: int) -> Tree:
    bias = config.dense_bias
    return head_params(
        config, labels, dense="head.dense", dense_bias=bias, norm="head.norm", out="classifier", bias=True
    )


FAMILY = Family(
    name="ModernBERT",
    architectures=("ModernBertModel", "ModernBertForSequenceClassification"),
    gguf=("modern-bert",),
    config=config,
    params=params,
    block=block,
    unused=r"head\..*|decoder\..*",
    classifier=classifier,
)
