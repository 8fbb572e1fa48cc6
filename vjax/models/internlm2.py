"""InternLM 2 and 2.5 (Cai et al., 2024): Llama under names of its own, with queries, keys and values as one tensor on
disk, by key/value head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, norm_params
from vjax.models.spec import Source, Tree, merged, vector, weight

DEFAULTS = {"rope_theta": 1e6, "rms_norm_eps": 1e-6}


def config(hf: dict[str, Any]) -> ModelConfig:
    bias = bool(hf.get("bias", False))
    return config_from_hf({**DEFAULTS, **hf}, qkv_bias=bias, o_bias=bias)


def params(config: ModelConfig) -> Tree:
    width, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    qkv = (config.num_kv_heads, config.groups + 2, config.head_dim)

    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        names = (f"{prefix}.feed_forward.w1.weight", f"{prefix}.feed_forward.w3.weight")
        gate_up = tuple(Source(name, (inner, width), (1, inner, width)) for name in names)
        apart = attention_params(config, f"{prefix}.self_attn")  # as a GGUF file has them
        together = weight(f"{prefix}.attention.wqkv.weight", (*qkv, width), ("kv_heads", None, None, "embed"))
        attention = {
            "qkv": replace(together, or_else=apart["qkv"]),
            "o": weight(f"{prefix}.attention.wo.weight", (width, heads), ("embed", "heads")),
        }
        if config.qkv_bias:
            bias = vector(f"{prefix}.attention.wqkv.bias", qkv, ("kv_heads", None, None), fill=0.0)
            attention["qkv_bias"] = replace(bias, or_else=apart["qkv_bias"])
            attention["o_bias"] = vector(f"{prefix}.attention.wo.bias", (width,), fill=0.0)
        return {
            "attention_norm": norm_params(config, f"{prefix}.attention_norm"),
            "attention": attention,
            "mlp_norm": norm_params(config, f"{prefix}.ffn_norm"),
            "mlp": {
                "gate_up": merged(gate_up, (None, "mlp", "embed"), concat=0),
                "down": weight(f"{prefix}.feed_forward.w2.weight", (width, inner), ("embed", "mlp")),
            },
        }

    layers = tuple(layer(i) for i in range(config.num_layers))
    return decoder_params(config, layers, embed="tok_embeddings", head="output")


FAMILY = Family(
    name="InternLM 2",
    architectures=("InternLM2ForCausalLM",),
    config=config,
    params=params,
    block=llama.block,
    gguf=("internlm2",),
    gguf_tensor=llama.gguf_tensor,
)
