"""Granite 3 MoE (IBM, 2024): Granite with a mixture of experts in all layers, and in GraniteMoeShared an expert for all
tokens. On disk all experts are one tensor."""

from __future__ import annotations

from typing import Any

from vjax.errors import ModelError
from vjax.layers.routing import Routing
from vjax.models import granite, llama
from vjax.models.config import ModelConfig, positive
from vjax.models.family import Family
from vjax.models.spec import Tree, weight

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
        tree: Tree = {
            "router": weight(f"{moe}.router.layer.weight", (count, width), (None, "embed")),
            "gate_up": weight(
                f"{moe}.input_linear.weight", (count, 2, inner, width), (None, None, "mlp", "embed"),
                stored=(count, 2 * inner, width),
            ),
            "down": weight(
                f"{moe}.output_linear.weight", (count, width, inner), (None, "embed", "mlp"),
                stored=(count, width, inner),
            ),
        }  # fmt: skip
        if config.shared_size:
            shared, inner = f"{prefix}.shared_mlp", config.shared_size
            tree["shared"] = {
                "gate_up": weight(f"{shared}.input_linear.weight", (2, inner, width), (None, "mlp", "embed")),
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
)
