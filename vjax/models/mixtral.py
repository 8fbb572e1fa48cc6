"""Mixtral (Jiang et al., 2024): Mistral's block, in which every token takes two of eight experts."""

from __future__ import annotations

from typing import Any

from vjax.layers.routing import Routing
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, positive
from vjax.models.family import Family
from vjax.models.moe_parts import moe_params
from vjax.models.spec import Tree

DEFAULTS = {"num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    experts, routing = positive(hf, "num_local_experts"), Routing(positive(hf, "num_experts_per_tok"), renormalise=True)
    routing.check(experts)
    made = config_from_hf(hf, routing=routing, num_experts=experts, expert_size=positive(hf, "intermediate_size"))
    return made.with_window(hf.get("sliding_window"))


def params(config: ModelConfig) -> Tree:
    return llama.pre_norm_params(
        config, lambda i, prefix: moe_params(config, f"{prefix}.block_sparse_moe", names=("w1", "w3", "w2"))
    )


FAMILY = Family(
    name="Mixtral",
    architectures=("MixtralForCausalLM",),
    config=config,
    params=params,
    block=llama.block,
    gguf_tensor=llama.gguf_tensor,
)
