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

OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 8.0,
    "beta_fast": 1.0,
    "beta_slow": 0.1,
    "truncate": False,
    "original_max_position_embeddings": 16,
}
GPT_OSS = (
    Case(
        "gpt-oss",
        decoder(
            "GptOssForCausalLM",
            "gpt_oss",
            hidden_size=64,
            intermediate_size=32,  # MXFP4 packs 32 numbers
            num_hidden_layers=3,
            num_attention_heads=6,
            head_dim=14,
            num_local_experts=5,
            num_experts_per_tok=3,
            sliding_window=6,
            rope_theta=1000.0,
            rope_scaling=OSS_ROPE,
            swiglu_limit=1.2,
            attention_bias=True,
            pad_token_id=0,
        ),
        switches=(
            {"sliding_window": 7},
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            {"swiglu_limit": 7.0},
            {"swiglu_alpha": 1.0},
            {"num_experts_per_tok": 2},
            {"rope_scaling": {**OSS_ROPE, "truncate": True}},
        ),
        gguf=False,
    ),
)
MOE = MIXTRAL + QWEN_MOE + GPT_OSS
