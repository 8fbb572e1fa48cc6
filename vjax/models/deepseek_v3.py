"""DeepSeek-V3 and R1 (DeepSeek-AI, 2024), Kimi-K2 (Moonshot AI, 2025), and GLM-4.7-Flash (Z.ai, 2026): multi-head
latent attention, and sigmoid routers whose choice a bias balances."""

from __future__ import annotations

from typing import Any, TypeVar

from vjax.errors import ModelError
from vjax.models.family import Family
from vjax.models.mla import MLAConfig, block, mla_config, params
from vjax.models.moe_config import dense_layers, mixture, sigmoid_routing

GLM = "Glm4MoeLiteForCausalLM"
# Published configs leave out what equals the reference's defaults.
DEFAULTS = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_interleave": True,
    "max_position_embeddings": 4096,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
GLM_DEFAULTS = {
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
    "n_routed_experts": 64,
    "moe_intermediate_size": 1536,
    "num_experts_per_tok": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.8,
}

C = TypeVar("C", bound=MLAConfig)


def config(hf: dict[str, Any]) -> MLAConfig:
    return latent_config({**(GLM_DEFAULTS if GLM in hf["architectures"] else {}), **hf}, MLAConfig)


def latent_config(hf: dict[str, Any], kind: type[C]) -> C:
    hf = {**DEFAULTS, **hf}
    for name in ("scoring_func", "topk_method"):
        if hf[name] != DEFAULTS[name]:
            raise ModelError(f"config field {name!r} is {hf[name]!r}; this family routes by {DEFAULTS[name]!r}.")
    fields = mixture(hf, dense_layers(hf), sigmoid_routing(hf))
    return mla_config(hf, kind, interleaved=bool(hf["rope_interleave"]), choice_bias=True, **fields)


FAMILY = Family(
    name="DeepSeek-V3",
    architectures=("DeepseekV3ForCausalLM", GLM),
    gguf=("deepseek2",),  # V2 too
    config=config,
    params=params,
    block=block,
    unused=r"model\.layers\.(61|47)\..*",  # predict further tokens
)
