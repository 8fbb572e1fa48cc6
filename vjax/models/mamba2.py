"""Mamba-2 (Dao & Gu, 2024): state-space layers alone, with neither attention nor MLP."""

from __future__ import annotations

from typing import Any

import jax

from vjax.errors import ModelError
from vjax.layers.context import Context
from vjax.layers.norms import add_norm
from vjax.layers.paging import Cache
from vjax.layers.ssm import SSMSpec, mamba2
from vjax.models.config import config_from_hf, positive
from vjax.models.family import Family
from vjax.models.hybrid import MambaConfig, decay_from_gguf, hybrid, mamba2_params, time_step_limit
from vjax.models.parts import decoder_params, norm_params
from vjax.models.spec import Tree

LONGEST = 1 << 17  # published configs state no longest context, as the state never grows


def config(hf: dict[str, Any]) -> MambaConfig:
    hf = {"max_position_embeddings": LONGEST, **hf}
    width, expand = positive(hf, "hidden_size"), positive(hf, "expand", 2)
    spec = SSMSpec(
        heads=positive(hf, "num_heads", 128),
        head_dim=positive(hf, "head_dim", 64),
        groups=positive(hf, "n_groups", 8),
        state=positive(hf, "state_size", 128),
        conv_size=positive(hf, "conv_kernel", 4),
        act=hf.get("hidden_act", "silu"),
        norm_eps=float(hf.get("layer_norm_epsilon", 1e-5)),
        time_step=time_step_limit(hf),
    )
    if spec.heads * spec.head_dim != expand * width:
        raise ModelError("num_heads * head_dim must equal expand * hidden_size.")
    # There is no attention: sizes of a cache without layers.
    absent = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2, "intermediate_size": expand * width}
    base = config_from_hf({**hf, **absent}, norm_eps=spec.norm_eps)
    bias, conv_bias = bool(hf.get("use_bias", False)), bool(hf.get("use_conv_bias", True))
    biases = dict(in_bias=bias, out_bias=bias, conv_bias=conv_bias)
    return hybrid(base, MambaConfig, (), tuple(range(base.num_layers)), spec.arrays, ssm=spec, **biases)


def params(config: MambaConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"backbone.layers.{i}"
        return {
            "norm": norm_params(config, f"{prefix}.norm"),
            "mamba": mamba2_params(config, f"{prefix}.mixer"),
        }

    layers = tuple(layer(i) for i in range(config.num_layers))
    return decoder_params(config, layers, "backbone.", embed="embeddings", final_norm="norm_f")


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: MambaConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    x, normed = add_norm(x, update, w["norm"], config.norm_eps, ctx)
    mixed, cache = mamba2(w["mamba"], normed, ctx, cache, layer, config.ssm)
    return x, mixed, cache


FAMILY = Family(
    name="Mamba-2",
    architectures=("Mamba2ForCausalLM",),
    gguf=("mamba2",),
    config=config,
    params=params,
    block=block,
    gguf_tensor=decay_from_gguf,
)
