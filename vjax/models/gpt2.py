"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, biases, an MLP without a gate. Weights are `[in, out]` on
disk, with queries, keys and values side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, head_width, layer_count, number, positive
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, mlp_params, norm_params
from vjax.models.spec import Axes, Param, Source, Tree, is_param, merged, vector

NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "activation_function": "hidden_act",
}
DEFAULTS = {"n_positions": 1024, "activation_function": "gelu_new", "tie_word_embeddings": True}


def config(hf: dict[str, Any]) -> ModelConfig:
    if hf.get("add_cross_attention"):
        raise ModelError("config field 'add_cross_attention' must be false.")
    hf = {**DEFAULTS, **hf}
    hf |= {ours: hf[theirs] for theirs, ours in NAMES.items() if theirs in hf}
    hidden = positive(hf, "hidden_size")
    scale = head_width(hf) ** -0.5 if hf.get("scale_attn_weights", True) else 1.0
    by_layer = bool(hf.get("scale_attn_by_inverse_layer_idx"))
    return config_from_hf(
        {**hf, "intermediate_size": positive(hf, "n_inner", 4 * hidden)},
        ropes=(),
        attention=tuple(
            AttentionSpec(scale / (i + 1) if by_layer else scale, rope=None, pool_layer=i)
            for i in range(layer_count(hf))
        ),
        norm="layer",
        norm_eps=number(hf, "layer_norm_epsilon", 1e-5),
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        position_offset=0,
    )


def params(config: ModelConfig) -> Tree:
    heads, dim, width, inner = config.num_heads, config.head_dim, config.hidden_size, config.intermediate_size

    def layer(i: int) -> Tree:
        prefix = f"transformer.h.{i}"
        biases = tuple(
            Source(f"{prefix}.attn.c_attn.bias", (3 * width,), (heads, 1, dim), rows=(j * width, (j + 1) * width))
            for j in range(3)
        )
        attention = {
            "qkv": _qkv(f"{prefix}.attn.c_attn.weight", heads, dim, width),
            "qkv_bias": merged(biases, ("kv_heads", None, None), concat=1, kind="vector"),
            "o": _transposed(f"{prefix}.attn.c_proj.weight", (width, width), ("embed", "heads")),
            "o_bias": vector(f"{prefix}.attn.c_proj.bias", (width,), fill=0.0),
        }
        mlp = {
            "up": _transposed(f"{prefix}.mlp.c_fc.weight", (inner, width), ("mlp", "embed")),
            "up_bias": vector(f"{prefix}.mlp.c_fc.bias", (inner,), ("mlp",), fill=0.0),
            "down": _transposed(f"{prefix}.mlp.c_proj.weight", (width, inner), ("embed", "mlp")),
            "down_bias": vector(f"{prefix}.mlp.c_proj.bias", (width,), fill=0.0),
        }
        norms = {
            "attention_norm": norm_params(config, f"{prefix}.ln_1"),
            "mlp_norm": norm_params(config, f"{prefix}.ln_2"),
        }
        # GGUF files hold weights as linear layers do, under names that say so here.
        linear = {
            "attention": attention_params(config, f"{prefix}.attn", fused="c_attn.linear", o="c_proj.linear"),
            "mlp": mlp_params(config, f"{prefix}.mlp", "c_fc.linear", "c_proj.linear"),
        }
        return {**norms, **_either({"attention": attention, "mlp": mlp}, linear)}

    layers = tuple(layer(i) for i in range(config.num_layers))
    return decoder_params(config, layers, "transformer.", embed="wte", final_norm="ln_f", positions="wpe")


def _either(tree: Tree, other: Tree) -> Tree:
    """The parameters as stored one way or the other."""
    return jax.tree.map(lambda param, form: replace(param, or_else=form), tree, other, is_leaf=is_param)


def _transposed(name: str, shape: tuple[int, int], axes: Axes) -> Param:
    return Param(shape, axes, (Source(name, shape[::-1], shape, convert=np.transpose),))


def _qkv(name: str, heads: int, dim: int, width: int) -> Param:
    """`[in, 3 * out]` to `[heads, 3, D, in]`."""

    def convert(values: np.ndarray) -> np.ndarray:
        return values.T.reshape(3, heads, dim, width).swapaxes(0, 1)

    shape = (heads, 3, dim, width)
    return Param(shape, ("kv_heads", None, None, "embed"), (Source(name, (width, 3 * width), shape, convert=convert),))


FAMILY = Family(
    name="GPT-2",
    architectures=("GPT2LMHeadModel",),
    gguf=("gpt2",),
    config=config,
    params=params,
    block=llama.block,
    optional_prefix="transformer.",
)
