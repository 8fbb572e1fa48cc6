"""Ernie 4.5 MoE (Baidu, 2025): Ernie 4.5 with a mixture of experts in most layers, whose softmax routers a bias
balances, and experts for all tokens."""

from __future__ import annotations

from typing import Any

from vjax.errors import ModelError
from vjax.layers.routing import Routing
from vjax.models import ernie4_5, llama
from vjax.models.config import ModelConfig, positive
from vjax.models.family import Family
from vjax.models.moe_parts import mixture_or_mlp
from vjax.models.spec import Tree

DEFAULTS = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, "head_dim": None, **hf}
    if hf.get("use_bias"):
        raise ModelError("config field 'use_bias' is true, which no published model has.")
    made = ernie4_5.config(hf)
    first, last, interval = (_index(hf, f"moe_layer_{name}") for name in ("start_index", "end_index", "interval"))
    last = made.num_layers - 1 if last == -1 else last
    if interval < 1:
        raise ModelError(f"config field 'moe_layer_interval' must be a positive integer, got {interval}.")
    dense = frozenset(i for i in range(made.num_layers) if (i + 1) % interval or not first <= i <= last)
    experts, size = positive(hf, "moe_num_experts"), positive(hf, "moe_intermediate_size")
    routing = Routing(positive(hf, "moe_k"), renormalise=True)
    routing.check(experts)
    shared = size * positive(hf, "moe_num_shared_experts") if hf["moe_num_shared_experts"] else 0
    return made.with_changes(
        routing=routing, num_experts=experts, expert_size=size, shared_size=shared, dense_layers=dense
    )  # fmt: skip


def _index(hf: dict[str, Any], name: str) -> int:
    value = hf[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < -1:
        raise ModelError(f"config field {name!r} must be an integer from -1 on, got {value!r}.")
    return value


def params(config: ModelConfig) -> Tree:
    mlp = mixture_or_mlp(config, shared="shared_experts", choice_bias="moe_statics.e_score_correction_bias")
    return llama.pre_norm_params(config, mlp)


FAMILY = Family(
    name="Ernie 4.5 MoE",
    architectures=("Ernie4_5_MoeForCausalLM",),
    config=config,
    params=params,
    block=llama.block,
    gguf=("ernie4_5-moe",),
    unused=r"model\.mtp.*",  # predict a further token
)
