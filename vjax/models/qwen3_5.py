"""Qwen3.5 (Qwen Team, 2026), text: Qwen3-Next whose DeltaNet layers keep their projections in four tensors. Of a
checkpoint with a vision tower the text model is loaded."""

from __future__ import annotations

from typing import Any

from vjax.models import qwen3_next
from vjax.models.config import of_text
from vjax.models.family import Family
from vjax.models.parts import decoder_params
from vjax.models.qwen3_next import DeltaConfig, by_head, layer_params
from vjax.models.spec import Param, Source, Tree, merged

UNUSED = r"model\.visual\..*|mtp\..*"  # the vision tower, and layers for speculation
DEFAULTS = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "num_key_value_heads": 4}


def config(hf: dict[str, Any]) -> DeltaConfig:
    return of_text(hf, lambda text: qwen3_next.delta_config({**DEFAULTS, **text}))


def params(config: DeltaConfig) -> Tree:
    layers = tuple(layer_params(config, i, delta_inputs) for i in range(config.num_layers))
    return decoder_params(config, layers, config.prefix)


def delta_inputs(config: DeltaConfig, prefix: str) -> dict[str, Param]:
    """As `qwen3_next.delta_inputs` has them."""
    heads, width, repeats = config.key_heads, config.hidden_size, config.repeats
    axes = ("kv_heads", None, "embed")

    def rows(name: str, channels: int) -> Source:
        return Source(f"{prefix}.in_proj_{name}.weight", (heads * channels, width), (heads, channels, width))

    qkv = by_head(config, f"{prefix}.in_proj_qkv.weight", (width,), (width,))
    return {
        "qkvz": merged((*qkv, rows("z", repeats * config.value_dim)), axes, concat=1),
        "ba": merged((rows("b", repeats), rows("a", repeats)), axes, concat=1),
    }


FAMILY = Family(
    name="Qwen3.5 (text)",
    architectures=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    config=config,
    params=params,
    block=qwen3_next.block,
    unused=UNUSED,
)
