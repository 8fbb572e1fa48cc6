"""Parameters of a mixture of experts, in the forms in which checkpoints store them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vjax.models.config import ModelConfig
from vjax.models.parts import gated_mlp_params
from vjax.models.spec import Param, Source, Tree, merged, vector, weight


def moe_params(
    config: ModelConfig, prefix: str, *, router: str = "gate", experts: str = "experts",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"), shared: str = "shared_expert",
    choice_bias: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The router, the experts (a tensor for each on disk, or all of them as one) and what they share.

    `choice_bias`: the name of the bias that sways the router's choice.
    """
    count, width = config.num_experts, config.hidden_size
    params: dict[str, Any] = {"router": weight(f"{prefix}.{router}.weight", (count, width), (None, "embed"))}
    params |= experts_params(config, f"{prefix}.{experts}", names)
    if choice_bias:
        params["choice_bias"] = vector(f"{prefix}.{choice_bias}", (count,), fill=0.0)
    if config.shared_size:
        params["shared"] = gated_mlp_params(config, f"{prefix}.{shared}", inner=config.shared_size)
    if config.shared_gate:
        params["shared_gate"] = weight(f"{prefix}.{shared}_gate.weight", (1, width), (None, "embed"))
    return params


def mixture_or_mlp(config: ModelConfig, **options: Any) -> Callable[[int, str], Tree]:
    """The second half of a pre-norm block (`llama.pre_norm_params`): a mixture, or an MLP in dense layers."""

    def second_half(i: int, prefix: str) -> Tree:
        if i in config.dense_layers:
            return gated_mlp_params(config, f"{prefix}.mlp")
        return moe_params(config, f"{prefix}.mlp", **options)

    return second_half


def experts_params(config: ModelConfig, prefix: str, names: tuple[str, str, str]) -> dict[str, Param]:
    """`gate_up[E, 2, F, d]` and `down[E, d, F]`; `names` of gate, up and down where every expert has its tensors."""
    count, width, inner = config.num_experts, config.hidden_size, config.expert_size
    gate, up, down = names
    shape, axes = (count, 2, inner, width), (None, None, "mlp", "embed")
    out_shape, out_axes = (count, width, inner), (None, "embed", "mlp")
    fused = Source(f"{prefix}.gate_up_proj", (count, 2 * inner, width), shape)
    fused_down = Source(f"{prefix}.down_proj", out_shape, out_shape)
    gate_up = tuple(
        Source(f"{prefix}.{e}.{name}.weight", (inner, width), (1, inner, width))
        for e in range(count)
        for name in (gate, up)
    )
    out = tuple(Source(f"{prefix}.{e}.{down}.weight", (width, inner), (1, width, inner)) for e in range(count))
    return {
        "gate_up": merged(gate_up, axes, 0, shape=shape, or_else=Param(shape, axes, (fused,))),
        "down": merged(out, out_axes, 0, or_else=Param(out_shape, out_axes, (fused_down,))),
    }


def stacked_gate_up(config: ModelConfig, prefix: str, width: int | None = None) -> Param:
    """All experts' gates as one tensor and their values as another, as GGUF files have them; biases without `width`."""
    kind, rest = ("weight", (width,)) if width else ("bias", ())
    stored, shape = (config.num_experts, config.expert_size, *rest), (config.num_experts, 1, config.expert_size, *rest)
    # A conversion, if only of nothing, keeps them from staying packed.
    sources = tuple(
        Source(f"{prefix}.{name}_proj.{kind}", stored, shape, convert=np.asarray) for name in ("gate", "up")
    )
    return merged(sources, (None, None, "mlp", *("embed",) * len(rest)), 1, "weight" if width else "vector")
