"""Llama 2 and 3 (Touvron et al., 2023; Dubey et al., 2024), and the pre-norm blocks that its relatives share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from vjax.layers.attention import self_attention
from vjax.layers.context import Context
from vjax.layers.mlp import mlp
from vjax.layers.moe import feed_forward
from vjax.layers.norms import add_norm, norm
from vjax.layers.paging import Cache
from vjax.models.config import ModelConfig, config_from_hf
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Tree


def config(hf: dict[str, Any]) -> ModelConfig:
    bias = bool(hf.get("attention_bias", False))
    return config_from_hf(hf, qkv_bias=bias, o_bias=bias, mlp_bias=bool(hf.get("mlp_bias", False)))


def params(config: ModelConfig) -> Tree:
    return pre_norm_params(config, lambda i, prefix: gated_mlp_params(config, f"{prefix}.mlp"))


def pre_norm_params(config: ModelConfig, mlp: Callable[[int, str], Tree]) -> Tree:
    """The parameters of blocks of this kind, with `mlp(layer, prefix)` for their second half."""

    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        return {
            "attention_norm": norm_params(config, f"{prefix}.input_layernorm"),
            "attention": attention_params(config, f"{prefix}.self_attn"),
            "mlp_norm": norm_params(config, f"{prefix}.post_attention_layernorm"),
            "mlp": mlp(i, prefix),
        }

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)))


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: ModelConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    eps, offset, scale = config.norm_eps, config.norm_offset, config.residual_scale
    x, normed = add_norm(x, update, w["attention_norm"], eps, ctx, offset)
    attended, cache = self_attention(w["attention"], normed, ctx, cache, config.attention[layer])
    x, normed = add_norm(x, attended if scale == 1.0 else attended * scale, w["mlp_norm"], eps, ctx, offset)
    out = feed_forward(w["mlp"], normed, config.hidden_act, config.routing)
    return x, out if scale == 1.0 else out * scale, cache


def parallel_block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: ModelConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    """Attention and MLP side by side, on one norm (Wang and Komatsuzaki, 2021)."""
    x, normed = add_norm(x, update, w["attention_norm"], config.norm_eps, ctx)
    attended, cache = self_attention(w["attention"], normed, ctx, cache, config.attention[layer])
    return x, attended + mlp(w["mlp"], normed, config.hidden_act), cache


def post_norm_block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: ModelConfig, layer: int,
) -> tuple[jax.Array, jax.Array | None, Cache | None]:  # fmt: skip
    """Norms of the stream itself, after each half (Vaswani et al., 2017): nothing is left to be added."""
    attended, cache = self_attention(w["attention"], x, ctx, cache, config.attention[layer])
    x = norm(x + attended, w["attention_norm"], config.norm_eps)
    return norm(x + mlp(w["mlp"], x, config.hidden_act), w["mlp_norm"], config.norm_eps), None, cache


def gguf_tensor(name: str, array: np.ndarray, config: ModelConfig) -> np.ndarray:
    """llama.cpp stores q and k rows for interleaved rope: put each head's even rows first again."""
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return array
    pairs = array.reshape(heads, config.head_dim // 2, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


FAMILY = Family(
    name="Llama",
    architectures=("LlamaForCausalLM",),
    gguf=("llama",),
    config=config,
    params=params,
    block=block,
    gguf_tensor=gguf_tensor,
)
