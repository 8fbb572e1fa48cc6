"""Granite 3 MoE (IBM, 2024): Granite with a mixture of experts in all layers, and in GraniteMoeShared an expert for all
tokens. On disk all experts are one tensor, and in a GGUF file two: gates and values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vjax.errors import ModelError
from vjax.layers.routing import Routing
from vjax.models import granite, llama
from vjax.models.config import ModelConfig, positive
from vjax.models.family import Family
from vjax.models.moe_parts import stacked_gate_up
from vjax.models.parts import gated_mlp_params
from vjax.models.spec import Param, Source, Tree, weight

DEFAULTS = {"num_local_experts": 8, "num_experts_per_tok": 2}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    experts, routing = positive(hf, "num_local_experts"), Routing(positive(hf, "num_experts_per_tok"), renormalise=True)
    routing.check(experts)
    shared = 0
    if "GraniteMoeSharedForCausalLM" in hf["architectures"]:
        shared = hf.get("shared_intermediate_size", 1024)
        if not isinstance(shared, int) or isinstance(shared, bool) or shared < 0:
            raise ModelError(f"config field 'shared_intermediate_size' must be an integer from 0 on, got {shared!r}.")
    size = positive(hf, "intermediate_size")
    made = llama.config(hf).with_changes(routing=routing, num_experts=experts, expert_size=size, shared_size=shared)
    return granite.scaled(hf, made)


def params(config: ModelConfig) -> Tree:
    def mlp(i: int, prefix: str) -> Tree:
        count, width, inner = config.num_experts, config.hidden_size, config.expert_size
        moe = f"{prefix}.block_sparse_moe"
        gate_up = Source(f"{moe}.input_linear.weight", (count, 2 * inner, width), (count, 2, inner, width))
        out = (count, width, inner)
        down = Source(f"{moe}.output_linear.weight", out, out, convert=np.asarray)  # not left in a GGUF file's blocks
        apart = stacked_gate_up(config, f"{moe}.experts", width)
        tree: Tree = {
            "router": weight(f"{moe}.router.layer.weight", (count, width), (None, "embed")),
            "gate_up": replace(apart, sources=(gate_up,), concat=0, or_else=apart),
            "down": Param(out, (None, "embed", "mlp"), (down,)),
        }
        if config.shared_size:
            shared, inner = f"{prefix}.shared_mlp", config.shared_size
            apart = gated_mlp_params(config, shared, inner=inner)["gate_up"]
            together = Source(f"{shared}.input_linear.weight", (2 * inner, width), (2, inner, width))
            tree["shared"] = {
                "gate_up": replace(apart, sources=(together,), or_else=apart),
                "down": weight(f"{shared}.output_linear.weight", (width, inner), ("embed", "mlp")),
            }
        return tree

    return llama.pre_norm_params(config, mlp)


FAMILY = Family(
    name="Granite 3 MoE",
    architectures=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    config=config,
    params=params,
    block=llama.block,
    gguf=("granitemoe",),
    gguf_tensor=llama.gguf_tensor,
)
