"""Bamba (IBM, 2024): Mamba-2 layers and a few of attention whose rope turns half a head; a gated MLP after each."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from vjax.layers.attention import self_attention
from vjax.layers.context import Context
from vjax.layers.mlp import mlp
from vjax.layers.norms import add_norm
from vjax.layers.paging import Cache
from vjax.layers.ssm import mamba2
from vjax.models import llama
from vjax.models.config import config_from_hf
from vjax.models.family import Family
from vjax.models.hybrid import MambaConfig, decay_from_gguf, hybrid, mamba2_params, mamba_spec
from vjax.models.parts import attention_params, decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Tree


def config(hf: dict[str, Any]) -> MambaConfig:
    rope, attending = hf.get("rope_parameters") or {}, hf.get("attn_layer_indices") or []
    hf = {"max_position_embeddings": 262144, **hf, "partial_rotary_factor": rope.get("partial_rotary_factor") or 0.5}
    bias, spec = bool(hf.get("attention_bias", False)), mamba_spec(hf)
    base = config_from_hf(hf, qkv_bias=bias, o_bias=bias, mlp_bias=bool(hf.get("mlp_bias", False)))
    proj_bias, conv_bias = bool(hf.get("mamba_proj_bias", False)), bool(hf.get("mamba_conv_bias", True))
    layers = range(base.num_layers)
    return hybrid(
        base, MambaConfig, tuple(i for i in layers if i in attending), tuple(i for i in layers if i not in attending),
        spec.arrays, ssm=spec, in_bias=proj_bias, out_bias=proj_bias, conv_bias=conv_bias,
    )  # fmt: skip


def params(config: MambaConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        mixer = (
            {"mamba": mamba2_params(config, f"{prefix}.mamba")}
            if i in config.recurrent_layers
            else {"attention": attention_params(config, f"{prefix}.self_attn")}
        )
        return mixer | {
            "norm": norm_params(config, f"{prefix}.input_layernorm"),
            "mlp_norm": norm_params(config, f"{prefix}.pre_ff_layernorm"),
            "mlp": gated_mlp_params(config, f"{prefix}.feed_forward"),
        }

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)), final_norm="final_layernorm")


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: MambaConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    x, normed = add_norm(x, update, w["norm"], config.norm_eps, ctx)
    if "mamba" in w:
        mixed, cache = mamba2(w["mamba"], normed, ctx, cache, config.recurrent_layers.index(layer), config.ssm)
    else:
        mixed, cache = self_attention(w["attention"], normed, ctx, cache, config.attention[layer])
    x, normed = add_norm(x, mixed, w["mlp_norm"], config.norm_eps, ctx)
    return x, mlp(w["mlp"], normed, config.hidden_act), cache


def gguf_tensor(name: str, array: np.ndarray, config: MambaConfig) -> np.ndarray:
    return llama.gguf_tensor(name, decay_from_gguf(name, array, config), config)


FAMILY = Family(
    name="Bamba",
    architectures=("BambaForCausalLM",),
    gguf=("granitehybrid",),
    config=config,
    params=params,
    block=block,
    gguf_tensor=gguf_tensor,
)
