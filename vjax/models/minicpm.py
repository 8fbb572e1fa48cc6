"""MiniCPM 1 and 2 (Hu et al., 2024): Granite's constants in another spelling."""

from __future__ import annotations

from typing import Any

from vjax.models import llama
from vjax.models.config import ModelConfig, number
from vjax.models.family import Family

DEFAULTS = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "tie_word_embeddings": True}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    made = llama.config({"rms_norm_eps": 1e-5, **hf})
    return made.with_changes(
        embed_scale=float(hf["scale_emb"]),
        residual_scale=float(hf["scale_depth"]) / made.num_layers**0.5,
        logit_scale=number(hf, "dim_model_base") / made.hidden_size,
    )


FAMILY = Family(
    name="MiniCPM 1, 2",
    architectures=("MiniCPMForCausalLM",),
    config=config,
    params=llama.params,
    block=llama.block,
    gguf=("minicpm",),
    gguf_tensor=llama.gguf_tensor,
)
