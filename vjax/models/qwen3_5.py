"""Qwen3.5 (Qwen Team, 2026), text: Qwen3-Next whose DeltaNet layers keep their projections in four tensors. Of a
checkpoint with a vision tower the text model is loaded."""

from __future__ import annotations

from typing import Any

import numpy as np

from vjax.models import qwen3_next
from vjax.models.config import of_text
from vjax.models.family import Family
from vjax.models.parts import decoder_params
from vjax.models.qwen3_next import DeltaConfig, layer_params, split_qkvz
from vjax.models.spec import Param, Source, Tree, merged

UNUSED = r"model\.visual\..*|mtp\..*"  # the vision tower, and layers for speculation
BY_VALUE_HEAD = (
    "in_proj_qkv.weight",  # its last rows
    "conv1d.weight",  # so here
    "in_proj_z.weight",
    "in_proj_b.weight",
    "in_proj_a.weight",
    "dt_bias",
    "A_log",
)
DEFAULTS = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "num_key_value_heads": 4}


def config(hf: dict[str, Any]) -> DeltaConfig:
    return of_text(hf, lambda text: qwen3_next.delta_config({**DEFAULTS, **text}))


def params(config: DeltaConfig) -> Tree:
    layers = tuple(layer_params(config, i, delta_inputs) for i in range(config.num_layers))
    return decoder_params(config, layers, config.prefix)


def delta_inputs(config: DeltaConfig, prefix: str) -> dict[str, Param]:
    """As `qwen3_next.delta_inputs` has them."""
    heads, width, repeats = config.key_heads, config.hidden_size, config.repeats

    def rows(name: str) -> Source:
        return Source(f"{prefix}.in_proj_{name}.weight", (heads * repeats, width), (heads, repeats, width))

    return {
        "qkvz": split_qkvz(config, prefix),
        "ba": merged((rows("b"), rows("a")), ("kv_heads", None, "embed"), concat=1),
    }


def gguf_tensor(name: str, array: np.ndarray, config: DeltaConfig) -> np.ndarray:
    """Besides what it does to Qwen3-Next, llama.cpp stores the first value head of every key head, then the second.
    Rows are put back by key head; columns stay, as blocks cannot be cut (`DeltaConfig.values_in_turn`)."""
    array, part = qwen3_next.gguf_tensor(name, array, config), name.split(".linear_attn.")[-1]
    values = config.value_heads * config.value_dim
    if not config.values_in_turn or part not in BY_VALUE_HEAD:
        return array
    if part in ("in_proj_qkv.weight", "conv1d.weight") and len(array) != values:
        return array  # queries or keys
    return array.reshape(config.repeats, config.key_heads, -1).swapaxes(0, 1).reshape(array.shape)


FAMILY = Family(
    name="Qwen3.5 (text)",
    architectures=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    config=config,
    gguf=("qwen35",),
    params=params,
    block=qwen3_next.block,
    gguf_tensor=gguf_tensor,
    unused=UNUSED,
)
