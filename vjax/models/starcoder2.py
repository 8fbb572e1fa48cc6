"""StarCoder2 (Lozhkov et al., 2024): LayerNorm, biases everywhere, an MLP without a gate, a window on every layer."""

from __future__ import annotations

from typing import Any

from vjax.layers.attention import AttentionSpec
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, number, positive
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, mlp_params, norm_params
from vjax.models.spec import Tree

DEFAULTS = {"hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096, "tie_word_embeddings": True}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    bias = bool(hf.get("use_bias", True))
    eps = number(hf, "norm_epsilon", 1e-5)
    config = config_from_hf(hf, norm="layer", norm_eps=eps, qkv_bias=bias, o_bias=bias, mlp_bias=bias)
    window = positive(hf, "sliding_window") if hf.get("sliding_window") is not None else None
    scale = config.head_dim**-0.5
    layers = tuple(AttentionSpec(scale, window=window, pool_layer=i) for i in range(config.num_layers))
    return config.with_changes(attention=layers)


def params(config: ModelConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        return {
            "attention_norm": norm_params(config, f"{prefix}.input_layernorm"),
            "attention": attention_params(config, f"{prefix}.self_attn"),
            "mlp_norm": norm_params(config, f"{prefix}.post_attention_layernorm"),
            "mlp": mlp_params(config, f"{prefix}.mlp", "c_fc", "c_proj"),
        }

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)))


FAMILY = Family(
    name="StarCoder2",
    architectures=("Starcoder2ForCausalLM",),
    gguf=("starcoder2",),
    config=config,
    params=params,
    block=llama.block,
)
