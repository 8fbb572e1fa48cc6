"""Configs of mixtures of experts, as DeepSeek's and those after it spell them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vjax.errors import ModelError
from vjax.layers.routing import Routing
from vjax.models.config import layer_count, number, positive


def mixture(hf: dict[str, Any], dense: Collection[int], routing: Routing) -> dict[str, Any]:
    """The fields of a config for it; layers in `dense` have none."""
    experts, size = positive(hf, "n_routed_experts"), positive(hf, "moe_intermediate_size")
    routing.check(experts)
    if hf.get("moe_layer_freq", 1) != 1:
        raise ModelError(f"config field 'moe_layer_freq' is {hf['moe_layer_freq']!r}; only 1 is supported.")
    shared = size * positive(hf, "n_shared_experts") if hf.get("n_shared_experts") else 0
    return dict(
        num_experts=experts, expert_size=size, shared_size=shared, dense_layers=frozenset(dense), routing=routing
    )  # fmt: skip


def sigmoid_routing(hf: dict[str, Any]) -> Routing:
    """Each expert is scored by itself; groups of them compete (DeepSeek-V3)."""
    return Routing(
        positive(hf, "num_experts_per_tok"),
        "sigmoid",
        renormalise=bool(hf["norm_topk_prob"]),
        scaling=number(hf, "routed_scaling_factor"),
        groups=positive(hf, "n_group", 1),
        top_groups=positive(hf, "topk_group", 1),
    )


def first_dense(hf: dict[str, Any]) -> range:
    """The layers with a dense MLP where `first_k_dense_replace` counts them."""
    count = hf.get("first_k_dense_replace")
    if not isinstance(count, int) or count < 0:
        raise ModelError(f"config field 'first_k_dense_replace' must be an integer from 0 on, got {count!r}.")
    return range(min(count, layer_count(hf)))


def dense_layers(hf: dict[str, Any]) -> list[int]:
    """By kind of each layer, or the first ones."""
    kinds, layers = hf.get("mlp_layer_types"), layer_count(hf)
    if kinds is None:
        return list(first_dense(hf))
    known = isinstance(kinds, list) and all(kind in ("dense", "sparse") for kind in kinds)
    if not known or len(kinds) != layers:
        raise ModelError(f"config field 'mlp_layer_types' must hold 'dense' or 'sparse' for each of {layers} layers.")
    return [i for i, each in enumerate(kinds) if each == "dense"]
