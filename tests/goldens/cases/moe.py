"""Mixtures of experts."""

from __future__ import annotations

from typing import Any

from tests.goldens.cases.case import YARN_ROPE, Case, Config, decoder


def mixtral(**fields: Any) -> Config:
    return decoder("MixtralForCausalLM", "mixtral", **{"rope_theta": 1e4, "num_experts_per_tok": 2, **fields})


MIXTRAL = (
    Case(
        "mixtral",
        mixtral(num_local_experts=5, hidden_size=40, intermediate_size=33),
        switches=({"num_experts_per_tok": 1}, {"sliding_window": 6}),
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
            num_experts=6,
            shared_expert_intermediate_size=29,
            norm_topk_prob=False,
        ),
        switches=({"num_experts_per_tok": 2}, {"norm_topk_prob": True}),
    ),
    Case(
        "qwen3-moe",
        qwen_moe(
            "Qwen3MoeForCausalLM",
            "qwen3_moe",
            head_dim=14,
            num_experts=7,
            norm_topk_prob=True,
        ),
        switches=({"num_experts_per_tok": 2}, {"norm_topk_prob": False}),
    ),
    Case(
        "qwen3-moe-dense-layers",
        qwen_moe(
            "Qwen3MoeForCausalLM",
            "qwen3_moe",
            num_hidden_layers=4,
            head_dim=14,
            num_experts=7,
            norm_topk_prob=True,
            decoder_sparse_step=2,  # layers 0 and 2 are dense
            mlp_only_layers=[1],
        ),
        switches=({"num_experts_per_tok": 2},),
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


def gpt_oss(**fields: Any) -> Config:
    ours: Config = dict(
        hidden_size=64,
        intermediate_size=32,  # MXFP4 packs 32 numbers
        num_attention_heads=6,
        head_dim=14,
        num_local_experts=5,
        num_experts_per_tok=3,
        sliding_window=6,
        rope_theta=1000.0,
        rope_scaling=OSS_ROPE,
        attention_bias=True,
        pad_token_id=0,
    )
    return decoder("GptOssForCausalLM", "gpt_oss", **{**ours, **fields})


GPT_OSS = (
    Case(
        "gpt-oss",
        gpt_oss(num_hidden_layers=3, swiglu_limit=1.2),
        switches=(
            {"sliding_window": 7},
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            {"swiglu_limit": 7.0},
            {"swiglu_alpha": 1.0},
            {"num_experts_per_tok": 2},
            {"rope_scaling": {**OSS_ROPE, "truncate": True}},
        ),
        gguf=False,  # which has published models' limit
    ),
    Case("gpt-oss-limit", gpt_oss(swiglu_limit=7.0), switches=({"swiglu_limit": 1.0},)),
)
GLM4_MOE = (
    Case(
        "glm4-moe",
        decoder(
            "Glm4MoeForCausalLM",
            "glm4_moe",
            num_hidden_layers=3,
            head_dim=12,
            rope_theta=1000.0,
            partial_rotary_factor=0.5,
            use_qk_norm=True,
            attention_bias=True,
            moe_intermediate_size=19,
            n_routed_experts=8,
            n_shared_experts=1,
            num_experts_per_tok=3,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.5,
            pad_token_id=0,
        ),
        switches=(
            {"partial_rotary_factor": 1.0},
            {"use_qk_norm": False},
            {"attention_bias": False},
            {"n_group": 4, "topk_group": 2},
            {"norm_topk_prob": False},
            {"routed_scaling_factor": 1.0},
        ),
    ),
)
MINIMAX_M2 = (
    Case(
        "minimax-m2",
        decoder(
            "MiniMaxM2ForCausalLM",
            "minimax_m2",
            intermediate_size=21,
            head_dim=12,
            rope_theta=1000.0,
            rotary_dim=6,
            use_qk_norm=True,
            qk_norm_type="per_layer",
            use_routing_bias=True,
            scoring_func="sigmoid",
            num_local_experts=7,
            num_experts_per_tok=3,
            pad_token_id=0,
        ),
        switches=({"rotary_dim": 12}, {"num_experts_per_tok": 2}),
    ),
)


def granite_moe(architecture: str, model_type: str, **fields: Any) -> Config:
    scales: Config = dict(
        embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.6, logits_scaling=0.5
    )
    sizes: Config = dict(num_local_experts=6, num_experts_per_tok=3, intermediate_size=23, rope_theta=1e4)
    return decoder(architecture, model_type, **{**scales, **sizes, "pad_token_id": 0, **fields})


SCALE_SWITCHES: tuple[Config, ...] = (
    {"embedding_multiplier": 1.0},
    {"attention_multiplier": 0.5},
    {"residual_multiplier": 1.0},
    {"logits_scaling": 1.0},
)
GRANITE_MOE = (
    Case(
        "granite-moe",
        granite_moe("GraniteMoeForCausalLM", "granitemoe"),
        switches=(*SCALE_SWITCHES, {"num_experts_per_tok": 2}),
    ),
    Case(
        "granite-moe-shared",
        granite_moe(
            "GraniteMoeSharedForCausalLM",
            "granitemoeshared",
            shared_intermediate_size=29,
            tie_word_embeddings=True,
            embedding_multiplier=0.8,  # small, or a tied model repeats its last token
            residual_multiplier=1.1,
        ),
        switches=({"num_experts_per_tok": 2},),
    ),
)
LAGUNA_ROPES = {
    "full_attention": {**YARN_ROPE, "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 1.0},
}


def laguna(**fields: Any) -> Config:
    ours: Config = dict(
        num_hidden_layers=3,
        head_dim=12,
        moe_intermediate_size=19,
        shared_expert_intermediate_size=23,
        num_experts=7,
        num_experts_per_tok=3,
        moe_routed_scaling_factor=1.5,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=LAGUNA_ROPES,
        pad_token_id=0,
    )
    return decoder("LagunaForCausalLM", "laguna", **{**ours, **fields})


LAGUNA = (
    Case(
        "laguna",
        laguna(
            num_attention_heads_per_layer=[6, 4, 2],
            mlp_layer_types=["dense", "sparse", "sparse"],
            moe_router_logit_softcapping=0.6,
            gating="per-head",
        ),
        switches=(
            {"sliding_window": 6},
            {"moe_routed_scaling_factor": 1.0},
            {"moe_router_logit_softcapping": 0.0},
            {"rope_parameters": {**LAGUNA_ROPES, "full_attention": LAGUNA_ROPES["sliding_attention"]}},
            {"rope_parameters": {**LAGUNA_ROPES, "sliding_attention": LAGUNA_ROPES["full_attention"]}},
        ),
        gguf=False,
    ),
    Case(
        "laguna-channels",
        laguna(gating="per-element", attention_bias=True, layer_types=None, num_hidden_layers=2),
        switches=({"attention_bias": False}, {"num_experts_per_tok": 2}),
        gguf=False,
    ),
)
ERNIE_MOE = (
    Case(
        "ernie-4.5-moe",
        decoder(
            "Ernie4_5_MoeForCausalLM",
            "ernie4_5_moe",
            num_hidden_layers=4,
            rope_theta=500.0,
            use_bias=False,
            moe_intermediate_size=19,
            moe_k=3,
            moe_num_experts=7,
            moe_num_shared_experts=2,
            moe_layer_start_index=2,
            moe_layer_end_index=3,
            moe_layer_interval=2,  # so that the last of four layers has one
            pad_token_id=0,
        ),
        switches=({"moe_k": 2}, {"rope_theta": 1e5}),
    ),
)
OLMOE = (
    Case(
        "olmoe",
        decoder(
            "OlmoeForCausalLM",
            "olmoe",
            intermediate_size=21,
            rope_theta=1e4,
            num_experts=7,
            num_experts_per_tok=3,
            norm_topk_prob=False,
            pad_token_id=0,
        ),
        switches=({"num_experts_per_tok": 2}, {"norm_topk_prob": True}),
    ),
)
MOE = MIXTRAL + QWEN_MOE + GPT_OSS + GLM4_MOE + MINIMAX_M2 + GRANITE_MOE + LAGUNA + ERNIE_MOE + OLMOE
