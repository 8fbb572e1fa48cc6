"""MiniCPM3 (OpenBMB, 2024): multi-head latent attention in MiniCPM's block, whose embedding, residuals and logits are
scaled by constants of the config."""

from __future__ import annotations

from typing import Any

from vjax.models.config import positive
from vjax.models.family import Family
from vjax.models.mla import MLAConfig, block, mla_config, params

# Published configs leave out what equals the reference's defaults.
DEFAULTS = {
    "kv_lora_rank": 256,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}


def config(hf: dict[str, Any]) -> MLAConfig:
    hf = {**DEFAULTS, **hf}
    width, layers = positive(hf, "hidden_size"), positive(hf, "num_hidden_layers")
    # Null turns a scale off.
    depth = 1.0 if hf["scale_depth"] is None else float(hf["scale_depth"]) / layers**0.5
    hf["v_head_dim"] = positive(hf, "v_head_dim", width // positive(hf, "num_attention_heads"))
    return mla_config(
        hf,
        MLAConfig,
        interleaved=False,
        embed_scale=float(hf["scale_emb"]),
        residual_scale=depth,
        logit_scale=positive(hf, "dim_model_base", width) / width,
        mlp_bias=bool(hf.get("mlp_bias", False)),
    )


FAMILY = Family(
    name="MiniCPM3",
    architectures=("MiniCPM3ForCausalLM",),
    gguf=("minicpm3",),
    config=config,
    params=params,
    block=block,
)
