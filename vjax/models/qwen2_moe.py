"""Qwen 2 MoE (Yang et al., 2024): Qwen 2, with a mixture of experts in some layers, and an expert for all tokens
behind a sigmoid gate."""

from __future__ import annotations

from typing import Any

from vjax.errors import ModelError
from vjax.layers.routing import Routing
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, layer_count, positive
from vjax.models.family import Family
from vjax.models.moe_parts import mixture_or_mlp
from vjax.models.qwen2 import with_windows
from vjax.models.spec import Tree

DEFAULTS = {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    shared = positive(hf, "shared_expert_intermediate_size", 5632)
    bias = bool(hf.get("qkv_bias", True))
    made = config_from_hf(hf, qkv_bias=bias, shared_size=shared, shared_gate=True, **mixture(hf))
    return with_windows(hf, made)


def mixture(hf: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Qwen mixture: every `decoder_sparse_step`-th layer but `mlp_only_layers` has one."""
    experts = positive(hf, "num_experts")
    routing = Routing(positive(hf, "num_experts_per_tok"), renormalise=bool(hf.get("norm_topk_prob", False)))
    routing.check(experts)
    layers, step = layer_count(hf), positive(hf, "decoder_sparse_step", 1)
    plain = hf.get("mlp_only_layers") or []
    if not isinstance(plain, list):
        raise ModelError(f"config field 'mlp_only_layers' must be a list, got {plain!r}.")
    dense = frozenset(i for i in range(layers) if i in plain or (i + 1) % step)
    size = positive(hf, "moe_intermediate_size")
    return dict(routing=routing, num_experts=experts, expert_size=size, dense_layers=dense)


def params(config: ModelConfig) -> Tree:
    return llama.pre_norm_params(config, mixture_or_mlp(config))


FAMILY = Family(
    name="Qwen2 MoE",
    architectures=("Qwen2MoeForCausalLM",),
    config=config,
    params=params,
    block=llama.block,
    gguf=("qwen2moe",),
)
