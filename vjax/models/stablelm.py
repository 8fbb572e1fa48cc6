"""StableLM 2 and 3B-4E1T (Bellagente et al., 2024): LayerNorm, a rope on part of each head; some with norms of every
query and key head, some with attention and MLP side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax

from vjax.layers.attention import AttentionSpec
from vjax.layers.context import Context
from vjax.layers.paging import Cache
from vjax.layers.rope import rope_from_hf
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, head_width, layer_count, number, rotary_dim
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Param, Source, Tree, merged


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {"max_position_embeddings": 4096, **hf}
    head_dim, eps, layers = head_width(hf), number(hf, "layer_norm_eps", 1e-5), range(layer_count(hf))
    return config_from_hf(
        hf,
        norm="layer",
        norm_eps=eps,
        qkv_bias=bool(hf.get("use_qkv_bias", False)),
        qk_norm="heads" if hf.get("qk_layernorm") else None,
        ropes=(rope_from_hf(hf, rotary_dim(hf, head_dim, default=0.25)),),
        attention=tuple(AttentionSpec(head_dim**-0.5, norm_eps=eps, pool_layer=i) for i in layers),
        parallel_residual=bool(hf.get("use_parallel_residual", False)),
    )


def params(config: ModelConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        attention = attention_params(config, f"{prefix}.self_attn")
        if config.qk_norm:
            attention["q_norm"] = _head_norms(config, f"{prefix}.self_attn.q_layernorm", config.num_heads)
            attention["k_norm"] = _head_norms(config, f"{prefix}.self_attn.k_layernorm", config.num_kv_heads)
        weights = {
            "attention_norm": norm_params(config, f"{prefix}.input_layernorm"),
            "attention": attention,
            "mlp": gated_mlp_params(config, f"{prefix}.mlp"),
        }
        if not config.parallel_residual:
            weights["mlp_norm"] = norm_params(config, f"{prefix}.post_attention_layernorm")
        return weights

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)))


def _head_norms(config: ModelConfig, prefix: str, heads: int) -> dict[str, Param]:
    """A LayerNorm without bias for every head, `[heads, D]`; one tensor a head on disk."""
    dim = config.head_dim
    sources = tuple(Source(f"{prefix}.norms.{head}.weight", (dim,), (1, dim)) for head in range(heads))
    return {"weight": replace(merged(sources, ("heads", None), concat=0, kind="vector"), fill=1.0)}


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: ModelConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    form = llama.parallel_block if config.parallel_residual else llama.block
    return form(w, x, update, ctx, cache, config, layer)


FAMILY = Family(
    name="StableLM",
    architectures=("StableLmForCausalLM",),
    gguf=("stablelm",),
    config=config,
    params=params,
    block=block,
)
