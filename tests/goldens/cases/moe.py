"""Mixtures of experts."""

from __future__ import annotations

from typing import Any

from tests.goldens.cases.case import Case, Config, decoder


def mixtral(**fields: Any) -> Config:
    return decoder("MixtralForCausalLM", "mixtral", **{"rope_theta": 1e4, "num_experts_per_tok": 2, **fields})


MIXTRAL = (
    Case(
        "mixtral",
        mixtral(num_local_experts=5, sliding_window=6, hidden_size=40, intermediate_size=33),
        switches=({"num_experts_per_tok": 1}, {"sliding_window": None}),
        gguf=False,
    ),
)


def qwen_moe(architecture: str, model_type: str, **fields: Any) -> Config:
    qwen: Config = {"rope_theta": 1e5, "rms_norm_eps": 1e-6, "moe_intermediate_size": 21, "num_experts_per_tok": 3}
    return decoder(architecture, model_type, **{**qwen, **fields})


QWEN_MOE = (
    Case(
        "qwen2-moe",
        qwen_moe(
            "Qwen2MoeForCausalLM",
            "qwen2_moe",
            num_hidden_layers=3,
            num_experts=6,
            shared_expert_intermediate_size=29,
            decoder_sparse_step=2,  # layers 0 and 2 are dense
            norm_topk_prob=False,
        ),
        switches=({"num_experts_per_tok": 2}, {"norm_topk_prob": True}),
        gguf=False,
    ),
    Case(
        "qwen3-moe",
        qwen_moe(
            "Qwen3MoeForCausalLM",
            "qwen3_moe",
            num_hidden_layers=3,
            head_dim=14,
            num_experts=7,
            norm_topk_prob=True,
            mlp_only_layers=[1],
        ),
        switches=({"num_experts_per_tok": 2}, {"norm_topk_prob": False}),
        gguf=False,
    ),
)
