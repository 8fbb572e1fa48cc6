"""Gemma 2 (Gemma Team, 2024): Gemma 3's block without query and key norms; every other layer sees a window, and both
the attention scores and the logits are soft-capped."""

from __future__ import annotations

from typing import Any

from vjax.layers.attention import AttentionSpec
from vjax.models import gemma3
from vjax.models.config import ModelConfig, config_from_hf, positive
from vjax.models.family import Family

# Published configs leave out what equals Hugging Face's defaults for Gemma 2.
DEFAULTS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    layers = positive(hf, "num_hidden_layers")
    kinds = hf.get("layer_types") or [("sliding_attention", "full_attention")[i % 2] for i in range(layers)]
    attention = tuple(
        AttentionSpec(
            float(hf["query_pre_attn_scalar"]) ** -0.5,
            window=hf["sliding_window"] if kind == "sliding_attention" else None,
            softcap=hf["attn_logit_softcapping"],
            pool_layer=i,
        )
        for i, kind in enumerate(kinds)
    )
    return config_from_hf(
        hf,
        attention=attention,
        norm_offset=1.0,
        hidden_act=hf["hidden_activation"],
        embed_scale=float(positive(hf, "hidden_size")) ** 0.5,
        final_softcap=hf["final_logit_softcapping"],
    )


FAMILY = Family(
    name="Gemma 2",
    architectures=("Gemma2ForCausalLM",),
    gguf=("gemma2",),
    config=config,
    params=gemma3.params,
    block=gemma3.block,
    gguf_tensor=gemma3.gguf_tensor,
)
