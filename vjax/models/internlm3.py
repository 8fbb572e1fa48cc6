"""InternLM 3 (Shanghai AI Laboratory, 2025): Llama whose biases have names of their own in the config."""

from __future__ import annotations

from typing import Any

from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf
from vjax.models.family import Family


def config(hf: dict[str, Any]) -> ModelConfig:
    bias = bool(hf.get("bias", False))
    return config_from_hf(hf, qkv_bias=bool(hf.get("qkv_bias", False)), o_bias=bias, mlp_bias=bias)


FAMILY = Family(
    name="InternLM 3",
    architectures=("InternLM3ForCausalLM",),
    config=config,
    params=llama.params,
    block=llama.block,
    gguf_tensor=llama.gguf_tensor,
)
