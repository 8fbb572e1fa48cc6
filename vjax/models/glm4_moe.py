"""GLM-4.5, 4.6 and 4.7 (Z.ai, 2025): grouped attention whose rope turns half of each head, then a mixture of experts
after DeepSeek-V3's: sigmoid routers, a bias that balances them, an expert for all tokens, and dense layers first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf
from vjax.models.family import Family
from vjax.models.moe_config import first_dense, mixture, sigmoid_routing
from vjax.models.moe_parts import mixture_or_mlp
from vjax.models.spec import Tree

# Published configs leave out what equals the reference's defaults.
DEFAULTS = {
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
}


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    made = config_from_hf(
        hf,
        qkv_bias=bool(hf.get("attention_bias", False)),
        qk_norm="head" if hf.get("use_qk_norm") else None,
        **mixture(hf, first_dense(hf), sigmoid_routing(hf)),
    )
    return made.with_changes(attention=tuple(replace(spec, norm_eps=made.norm_eps) for spec in made.attention))


def params(config: ModelConfig) -> Tree:
    mlp = mixture_or_mlp(config, shared="shared_experts", choice_bias="gate.e_score_correction_bias")
    return llama.pre_norm_params(config, mlp)


FAMILY = Family(
    name="GLM-4 MoE",
    architectures=("Glm4MoeForCausalLM",),
    config=config,
    params=params,
    block=llama.block,
    gguf=("glm4moe",),
    unused=r"model\.layers\.(92|46)\..*",  # predict a further token
)
