"""Nemotron-H (NVIDIA, 2025): one mixer a block, each with its norm: Mamba-2, attention without positions, or an MLP of
squared ReLU."""

from __future__ import annotations

import math
from typing import Any

import jax

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec, self_attention
from vjax.layers.context import Context
from vjax.layers.mlp import mlp
from vjax.layers.norms import add_norm
from vjax.layers.paging import Cache
from vjax.layers.ssm import SSMSpec, mamba2
from vjax.models.config import config_from_hf, positive
from vjax.models.family import Family
from vjax.models.hybrid import MambaConfig, hybrid, mamba2_params, places
from vjax.models.parts import attention_params, decoder_params, mlp_params, norm_params
from vjax.models.spec import Tree

PATTERN = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
KINDS = ("linear_attention", "full_attention", "mlp")
OLD_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}
SPELLINGS = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_dt_min": "time_step_min",
    "mamba_conv_bias": "use_conv_bias",
}
DEFAULTS = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 21504,
    "max_position_embeddings": 4096,
}


def config(hf: dict[str, Any]) -> MambaConfig:
    hf = {**DEFAULTS, **hf, **{new: hf[old] for old, new in SPELLINGS.items() if old in hf}}
    kinds, eps = _kinds(hf), float(hf.get("layer_norm_epsilon", 1e-5))
    spec = SSMSpec(
        heads=positive(hf, "mamba_num_heads", 128),
        head_dim=positive(hf, "mamba_head_dim", 64),
        groups=positive(hf, "n_groups", 8),
        state=positive(hf, "ssm_state_size", 128),
        conv_size=positive(hf, "conv_kernel", 4),
        act=hf.get("mamba_hidden_act", "silu"),
        norm_eps=eps,
        time_step=(float(hf.get("time_step_min", 0.001)), math.inf),
    )
    act, mlp_bias = hf.get("mlp_hidden_act", "relu2"), bool(hf.get("mlp_bias", False))
    base = config_from_hf({**hf, "num_hidden_layers": len(kinds)}, norm_eps=eps, hidden_act=act, mlp_bias=mlp_bias)
    attention = (AttentionSpec(base.head_dim**-0.5, rope=None),) * len(kinds)
    bias, conv_bias = bool(hf.get("use_bias", False)), bool(hf.get("use_conv_bias", True))
    return hybrid(
        base.with_changes(attention=attention), MambaConfig, places(kinds, "full_attention"),
        places(kinds, "linear_attention"), spec.arrays, ssm=spec, in_bias=bias, out_bias=bias, conv_bias=conv_bias,
    )  # fmt: skip


def _kinds(hf: dict[str, Any]) -> list[str]:
    """Of every layer: `layers_block_type`, or a letter each in `hybrid_override_pattern`."""
    found = hf.get("layers_block_type") or [PATTERN.get(c, c) for c in hf.get("hybrid_override_pattern") or ""]
    kinds = [OLD_NAMES.get(kind, kind) for kind in found]
    for kind in kinds:
        if kind not in KINDS:
            raise ModelError(f"layers_block_type {kind!r} is not supported; known: {', '.join(KINDS)}.")
    if not kinds:
        raise ModelError("config field 'hybrid_override_pattern' or 'layers_block_type' is missing.")
    return kinds


def params(config: MambaConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"backbone.layers.{i}"
        if i in config.recurrent_layers:
            mixer = {"mamba": mamba2_params(config, f"{prefix}.mixer")}
        elif i in config.attention_layers:
            mixer = {"attention": attention_params(config, f"{prefix}.mixer")}
        else:
            mixer = {"mlp": mlp_params(config, f"{prefix}.mixer", up="up_proj", down="down_proj")}
        return mixer | {"norm": norm_params(config, f"{prefix}.norm")}

    layers = tuple(layer(i) for i in range(config.num_layers))
    return decoder_params(config, layers, "backbone.", embed="embeddings", final_norm="norm_f")


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: MambaConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    x, normed = add_norm(x, update, w["norm"], config.norm_eps, ctx)
    if "mamba" in w:
        mixed, cache = mamba2(w["mamba"], normed, ctx, cache, config.recurrent_layers.index(layer), config.ssm)
    elif "attention" in w:
        mixed, cache = self_attention(w["attention"], normed, ctx, cache, config.attention[layer])
    else:
        mixed = mlp(w["mlp"], normed, config.hidden_act)
    return x, mixed, cache


FAMILY = Family(
    name="Nemotron-H",
    architectures=("NemotronHForCausalLM",),
    config=config,
    params=params,
    block=block,
)
