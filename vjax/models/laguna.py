"""Laguna (Poolside, 2026): as many query heads as each layer says, behind a softplus gate; windowed and full attention,
each with its rope; mixtures of experts by sigmoid routers, a bias that balances them, and an expert for all tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from vjax.errors import ModelError
from vjax.layers.rope import Rope, rope_from_hf
from vjax.layers.routing import Routing
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, number, positive, rotary_dim
from vjax.models.family import Family
from vjax.models.hybrid import layer_types
from vjax.models.moe_config import dense_layers
from vjax.models.moe_parts import mixture_or_mlp
from vjax.models.parts import attention_params
from vjax.models.spec import Tree, weight

FULL, WINDOWED = "full_attention", "sliding_attention"
DEFAULTS = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "max_position_embeddings": 131072,
    "first_k_dense_replace": 1,
}
ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    WINDOWED: {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
}


@dataclass(frozen=True)
class LagunaConfig(ModelConfig):
    heads: tuple[int, ...] = ()  # of each layer
    gate_channels: bool = False  # a gate for each channel, not for each head


def config(hf: dict[str, Any]) -> LagunaConfig:
    hf = {**DEFAULTS, **hf}
    if hf.get("moe_apply_router_weight_on_input"):
        raise ModelError("moe_apply_router_weight_on_input=True is not supported.")
    if hf.get("gating", True) not in (True, "per-head", "per-element"):
        raise ModelError(f"config field 'gating' is {hf['gating']!r}; known: true, per-head, per-element.")
    cap = hf.get("moe_router_logit_softcapping")
    routing = Routing(
        positive(hf, "num_experts_per_tok"),
        "sigmoid",
        renormalise=True,
        scaling=number(hf, "moe_routed_scaling_factor", 1.0),
        softcap=number(hf, "moe_router_logit_softcapping") if cap else None,
    )
    routing.check(positive(hf, "num_experts"))
    bias = bool(hf.get("attention_bias", False))
    base = config_from_hf(
        {**hf, "rope_parameters": None},
        ropes=_ropes(hf),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        routing=routing,
        num_experts=positive(hf, "num_experts"),
        expert_size=positive(hf, "moe_intermediate_size"),
        shared_size=positive(hf, "shared_expert_intermediate_size"),
        dense_layers=frozenset(dense_layers(hf)),
    )
    kinds = layer_types(hf, (FULL, WINDOWED), [FULL] * base.num_layers)
    if WINDOWED in kinds:
        base = base.with_windows(kinds, positive(hf, "sliding_window", 512))
    attention = tuple(
        replace(spec, rope=int(kind == WINDOWED), norm_eps=base.norm_eps)
        for spec, kind in zip(base.attention, kinds, strict=True)
    )
    known = {field.name: getattr(base, field.name) for field in fields(base)}
    heads, channels = _heads(hf, base), hf.get("gating") == "per-element"
    return LagunaConfig(**{**known, "attention": attention}, heads=heads, gate_channels=channels)


def _ropes(hf: dict[str, Any]) -> tuple[Rope, ...]:
    given, width = hf.get("rope_parameters") or ROPES, positive(hf, "head_dim")
    if not isinstance(given, dict) or not all(isinstance(given.get(kind), dict) for kind in ROPES):
        raise ModelError(f"config field 'rope_parameters' must hold an object for each of {', '.join(ROPES)}.")
    return tuple(rope_from_hf(hf, rotary_dim(given[kind], width), parameters=given[kind]) for kind in ROPES)


def _heads(hf: dict[str, Any], config: ModelConfig) -> tuple[int, ...]:
    heads, groups = hf.get("num_attention_heads_per_layer"), config.num_kv_heads
    if heads is None:
        return (config.num_heads,) * config.num_layers
    if not isinstance(heads, list) or len(heads) != config.num_layers:
        raise ModelError(f"num_attention_heads_per_layer must be a list for {config.num_layers} layers, got {heads!r}.")
    if not all(isinstance(count, int) and count > 0 and count % groups == 0 for count in heads):
        raise ModelError(f"num_attention_heads_per_layer must hold multiples of {groups}, got {heads!r}.")
    return tuple(heads)


def params(config: LagunaConfig) -> Tree:
    tree = llama.pre_norm_params(config, mixture_or_mlp(config, choice_bias="experts.e_score_correction_bias"))
    for i, layer in enumerate(tree["layers"]):
        prefix, here = f"model.layers.{i}.self_attn", config.with_changes(num_heads=config.heads[i])
        channels = (config.head_dim,) if config.gate_channels else ()
        shape = (config.num_kv_heads, here.groups, *channels, config.hidden_size)
        gate = weight(f"{prefix}.g_proj.weight", shape, ("kv_heads", *[None] * len(shape[1:-1]), "embed"))
        layer["attention"] = attention_params(here, prefix) | {"gate": gate}
    return tree


FAMILY = Family(
    name="Laguna",
    architectures=("LagunaForCausalLM",),
    config=config,
    params=params,
    block=llama.block,
)
