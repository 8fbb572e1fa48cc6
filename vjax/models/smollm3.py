"""SmolLM3 (Hugging Face, 2025): Llama without positions (NoPE) in every fourth layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.errors import ModelError
from vjax.models import llama
from vjax.models.config import ModelConfig, positive
from vjax.models.family import Family

DEFAULTS = {"num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": True, "rope_theta": 2e6}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    made = llama.config(hf)
    every = positive(hf, "no_rope_layer_interval", 4)
    turned = hf.get("no_rope_layers") or [(i + 1) % every != 0 for i in range(made.num_layers)]  # true: has a rope
    if not isinstance(turned, list) or len(turned) != made.num_layers:
        raise ModelError(
            f"config field 'no_rope_layers' must be a list with an entry for each of {made.num_layers} layers."
        )
    window = positive(hf, "sliding_window") if hf.get("use_sliding_window") and hf.get("sliding_window") else None
    kinds = hf.get("layer_types") or ["full_attention" if rope else "sliding_attention" for rope in turned]
    attention = tuple(
        replace(spec, rope=0 if rope else None, window=window if kind == "sliding_attention" else None)
        for spec, rope, kind in zip(made.attention, turned, kinds, strict=True)
    )
    return made.with_changes(attention=attention)


FAMILY = Family(
    name="SmolLM3",
    architectures=("SmolLM3ForCausalLM",),
    config=config,
    params=llama.params,
    block=llama.block,
    gguf=("smollm3",),
    gguf_tensor=llama.gguf_tensor,
)
