"""MiniCPM3 (OpenBMB, 2024): multi-head latent attention in MiniCPM's block, whose embedding, residuals and logits are
scaled by constants of the config."""

from __future__ import annotations

from typing import Any

import jax

from vjax.layers.context import Context
from vjax.layers.mla import latent_attention
from vjax.layers.mlp import mlp
from vjax.layers.norms import add_norm
from vjax.layers.paging import Cache
from vjax.models.config import positive
from vjax.models.family import Family
from vjax.models.mla import MLAConfig, mla_config, mla_params
from vjax.models.parts import decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Tree

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


def params(config: MLAConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        return {
            "attention_norm": norm_params(config, f"{prefix}.input_layernorm"),
            "attention": mla_params(config, f"{prefix}.self_attn"),
            "mlp_norm": norm_params(config, f"{prefix}.post_attention_layernorm"),
            "mlp": gated_mlp_params(config, f"{prefix}.mlp"),
        }

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)))


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: MLAConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    x, normed = add_norm(x, update, w["attention_norm"], config.norm_eps, ctx)
    attended, cache = latent_attention(w["attention"], normed, ctx, cache, config.attention[layer])
    x, normed = add_norm(x, attended * config.residual_scale, w["mlp_norm"], config.norm_eps, ctx)
    return x, mlp(w["mlp"], normed, config.hidden_act) * config.residual_scale, cache


FAMILY = Family(
    name="MiniCPM3", architectures=("MiniCPM3ForCausalLM",), config=config, params=params, block=block
)  # fmt: skip
