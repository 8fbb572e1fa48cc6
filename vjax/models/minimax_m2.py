"""MiniMax-M2 (MiniMax, 2025): norms over all queries and keys at once, a rope on half of each head, and in all layers a
mixture of experts with sigmoid routers that a bias balances."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.errors import ModelError
from vjax.layers.routing import Routing
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, head_width, positive
from vjax.models.family import Family
from vjax.models.moe_parts import moe_params
from vjax.models.spec import Tree

DEFAULTS = {
    "head_dim": 128,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5e6,
    "max_position_embeddings": 196608,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
}
# What the published config says and no other value of which is known to the reference.
FIXED = {"scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer", "use_routing_bias": True,
         "shared_intermediate_size": 0}  # fmt: skip


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    for name, value in FIXED.items():
        if hf.get(name, value) != value:
            raise ModelError(f"config field {name!r} is {hf[name]!r}; only {value!r} is supported.")
    if hf.get("rotary_dim") is not None and hf.get("partial_rotary_factor") is None:
        hf["partial_rotary_factor"] = positive(hf, "rotary_dim") / head_width(hf)
    experts, top_k = positive(hf, "num_local_experts"), positive(hf, "num_experts_per_tok")
    routing = Routing(top_k, "sigmoid", renormalise=True)
    routing.check(experts)
    size = positive(hf, "intermediate_size")
    made = config_from_hf(hf, qk_norm="full", routing=routing, num_experts=experts, expert_size=size)
    return made.with_changes(attention=tuple(replace(spec, norm_eps=made.norm_eps) for spec in made.attention))


def params(config: ModelConfig) -> Tree:
    def mlp(i: int, prefix: str) -> Tree:
        names = ("w1", "w3", "w2")
        return moe_params(
            config, f"{prefix}.block_sparse_moe", names=names, choice_bias="e_score_correction_bias"
        )  # fmt: skip

    return llama.pre_norm_params(config, mlp)


FAMILY = Family(
    name="MiniMax-M2",
    architectures=("MiniMaxM2ForCausalLM",),
    config=config,
    params=params,
    block=llama.block,
    gguf=("minimax-m2",),
    unused=r"model\.layers\.6[2-4]\..*",  # predict further tokens
)
