"""HunYuan, dense (Tencent, 2025): Llama with norms of each head after the rope, whose base a constant stretches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.layers.rope import Rope
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf
from vjax.models.family import Family
from vjax.models.parts import norm_params
from vjax.models.spec import Tree


def config(hf: dict[str, Any]) -> ModelConfig:
    bias = bool(hf.get("attention_bias", False))
    made = config_from_hf({"rms_norm_eps": 1e-5, **hf}, qkv_bias=bias, o_bias=bias, qk_norm="head")
    attention = tuple(replace(spec, norm_eps=made.norm_eps, norm_after_rope=True) for spec in made.attention)
    scaling = {**(hf.get("rope_scaling") or {}), **(hf.get("rope_parameters") or {})}
    if alpha := scaling.get("alpha"):  # the "dynamic" scaling of its configs is none: the base is fixed
        dim, base = made.head_dim, scaling.get("rope_theta") or hf.get("rope_theta") or 10000.0
        made = made.with_changes(ropes=(Rope(dim, float(base) * float(alpha) ** (dim / (dim - 2))),))
    return made.with_changes(attention=attention)


def params(config: ModelConfig) -> Tree:
    tree = llama.params(config)
    for i, layer in enumerate(tree["layers"]):
        prefix = f"model.layers.{i}.self_attn"
        layer["attention"]["q_norm"] = norm_params(config, f"{prefix}.query_layernorm", config.head_dim)
        layer["attention"]["k_norm"] = norm_params(config, f"{prefix}.key_layernorm", config.head_dim)
    return tree


FAMILY = Family(
    name="HunYuan (dense)",
    architectures=("HunYuanDenseV1ForCausalLM",),
    config=config,
    params=params,
    block=llama.block,
    gguf=("hunyuan-dense",),
)
