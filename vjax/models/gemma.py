"""Gemma 1 (Gemma Team, 2024): Llama with a GELU gate, a scaled embedding and norms that mean 1 + w."""

from __future__ import annotations

from typing import Any

from vjax.models import gemma3, llama
from vjax.models.config import ModelConfig, config_from_hf, positive
from vjax.models.family import Family

DEFAULTS = {"head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True, "rms_norm_eps": 1e-6}


def config(hf: dict[str, Any]) -> ModelConfig:
    bias = bool(hf.get("attention_bias", False))
    return config_from_hf(
        {**DEFAULTS, **hf},
        qkv_bias=bias,
        o_bias=bias,
        norm_offset=1.0,
        hidden_act="gelu_pytorch_tanh",  # whatever old configs call it: models were trained with this one
        embed_scale=float(positive(hf, "hidden_size")) ** 0.5,
    )


FAMILY = Family(
    name="Gemma 1",
    architectures=("GemmaForCausalLM",),
    gguf=("gemma",),
    config=config,
    params=llama.params,
    block=llama.block,
    gguf_tensor=gemma3.gguf_tensor,
)
