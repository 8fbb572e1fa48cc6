"""DeepSeek-V2 (DeepSeek-AI, 2024): multi-head latent attention, and mixtures of experts under softmax routers, which
may choose groups of experts first."""

from __future__ import annotations

from typing import Any

from vjax.errors import ModelError
from vjax.layers.routing import Routing
from vjax.models.config import positive
from vjax.models.family import Family
from vjax.models.mla import MLAConfig, block, mla_config, params
from vjax.models.moe_config import first_dense, mixture

# Published configs leave out what equals the reference's defaults.
DEFAULTS = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1407,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
    "topk_method": "greedy",
    "scoring_func": "softmax",
}


def config(hf: dict[str, Any]) -> MLAConfig:
    hf = {**DEFAULTS, **hf}
    if hf["scoring_func"] != "softmax":
        raise ModelError(f"config field 'scoring_func' is {hf['scoring_func']!r}; DeepSeek-V2 routes by softmax.")
    if hf.get("norm_topk_prob"):
        raise ModelError("config field 'norm_topk_prob' is true, which references of DeepSeek-V2 disagree about.")
    if hf["topk_method"] not in ("greedy", "group_limited_greedy"):
        raise ModelError(f"config field 'topk_method' is {hf['topk_method']!r}; known: greedy, group_limited_greedy.")
    limited = hf["topk_method"] == "group_limited_greedy"
    routing = Routing(
        positive(hf, "num_experts_per_tok"),
        scaling=float(hf["routed_scaling_factor"]),
        groups=positive(hf, "n_group") if limited else 1,
        top_groups=positive(hf, "topk_group") if limited else 1,
        group_score="best",
    )
    fields = mixture(hf, first_dense(hf), routing)
    return mla_config(hf, MLAConfig, interleaved=True, mlp_bias=bool(hf.get("mlp_bias", False)), **fields)


FAMILY = Family(
    name="DeepSeek-V2", architectures=("DeepseekV2ForCausalLM",), config=config, params=params, block=block
)  # fmt: skip
