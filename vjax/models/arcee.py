"""Arcee AFM (Arcee AI, 2025): Llama with a squared ReLU instead of a gated MLP."""

from __future__ import annotations

from typing import Any

from vjax.models import llama
from vjax.models.config import ModelConfig
from vjax.models.family import Family
from vjax.models.parts import mlp_params
from vjax.models.spec import Tree


def config(hf: dict[str, Any]) -> ModelConfig:
    return llama.config({"hidden_act": "relu2", "rms_norm_eps": 1e-5, **hf})


def params(config: ModelConfig) -> Tree:
    return llama.pre_norm_params(config, lambda i, prefix: mlp_params(config, f"{prefix}.mlp", "up_proj", "down_proj"))


FAMILY = Family(
    name="Arcee",
    architectures=("ArceeForCausalLM",),
    config=config,
    params=params,
    block=llama.block,
    gguf=("arcee",),
    gguf_tensor=llama.gguf_tensor,
)
