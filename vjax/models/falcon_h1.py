"""Falcon-H1 (TII, 2025): Mamba-2 and attention side by side in every block, and multipliers (muP: Yang et al., 2022)
nearly everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec, self_attention
from vjax.layers.context import Context
from vjax.layers.mlp import mlp
from vjax.layers.norms import add_norm
from vjax.layers.paging import Cache
from vjax.layers.ssm import mamba2
from vjax.models.config import config_from_hf
from vjax.models.family import Family
from vjax.models.hybrid import MambaConfig, decay_from_gguf, hybrid, mamba2_params, mamba_spec
from vjax.models.parts import attention_params, decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Tree


@dataclass(frozen=True)
class FalconConfig(MambaConfig):
    """Multipliers of what goes into and comes out of each half."""

    attention_in: float = 1.0
    attention_out: float = 1.0
    ssm_in: float = 1.0
    ssm_out: float = 1.0
    mlp_gate: float = 1.0
    mlp_out: float = 1.0


def config(hf: dict[str, Any]) -> FalconConfig:
    def number(name: str) -> float:
        return float(hf[name]) if hf.get(name) is not None else 1.0

    def numbers(name: str, count: int) -> tuple[float, ...]:
        found = hf.get(name) or [1.0] * count
        if len(found) != count:
            raise ModelError(f"config field {name!r} must hold {count} numbers, got {found!r}.")
        return tuple(float(value) for value in found)

    hf = {"max_position_embeddings": 8192, "mamba_d_ssm": 1024, **hf}
    first = hf.get("mamba_norm_before_gate", True)
    gate = ("after norm" if first else "before norm") if hf.get("mamba_rms_norm", False) else "alone"
    spec = mamba_spec(hf, gate=gate, multipliers=numbers("ssm_multipliers", 5))
    bias = bool(hf.get("attention_bias", False))
    base = config_from_hf(
        hf, qkv_bias=bias, o_bias=bias, mlp_bias=bool(hf.get("mlp_bias", False)),
        embed_scale=number("embedding_multiplier"), logit_scale=number("lm_head_multiplier"),
    )  # fmt: skip
    # Scaled keys are scaled scores.
    attention = AttentionSpec(base.head_dim**-0.5 * number("key_multiplier"))
    mlp_gate, mlp_out = numbers("mlp_multipliers", 2)
    layers = tuple(range(base.num_layers))
    return hybrid(
        base.with_changes(attention=(attention,) * len(layers)), FalconConfig, layers, layers, spec.arrays, ssm=spec,
        in_bias=bool(hf.get("mamba_proj_bias", False)), out_bias=bool(hf.get("projectors_bias", False)),
        conv_bias=bool(hf.get("mamba_conv_bias", True)), mlp_gate=mlp_gate, mlp_out=mlp_out,
        attention_in=number("attention_in_multiplier"), attention_out=number("attention_out_multiplier"),
        ssm_in=number("ssm_in_multiplier"), ssm_out=number("ssm_out_multiplier"),
    )  # fmt: skip


def params(config: FalconConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        return {
            "norm": norm_params(config, f"{prefix}.input_layernorm"),
            "mamba": mamba2_params(config, f"{prefix}.mamba"),
            "attention": attention_params(config, f"{prefix}.self_attn"),
            "mlp_norm": norm_params(config, f"{prefix}.pre_ff_layernorm"),
            "mlp": gated_mlp_params(config, f"{prefix}.feed_forward"),
        }

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)), final_norm="final_layernorm")


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: FalconConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    x, normed = add_norm(x, update, w["norm"], config.norm_eps, ctx)
    mixed, cache = mamba2(w["mamba"], normed * config.ssm_in, ctx, cache, layer, config.ssm)
    attended, cache = self_attention(
        w["attention"], normed * config.attention_in, ctx, cache, config.attention[layer]
    )  # fmt: skip
    x, normed = add_norm(
        x, mixed * config.ssm_out + attended * config.attention_out, w["mlp_norm"], config.norm_eps, ctx
    )  # fmt: skip
    return x, mlp(w["mlp"], normed, config.hidden_act, config.mlp_gate) * config.mlp_out, cache


FAMILY = Family(
    name="Falcon-H1",
    architectures=("FalconH1ForCausalLM",),
    gguf=("falcon-h1",),
    config=config,
    params=params,
    block=block,
    gguf_tensor=decay_from_gguf,
)
