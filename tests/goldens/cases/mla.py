"""Multi-head latent attention: MiniCPM3, DeepSeek and what descends from it."""

from __future__ import annotations

from typing import Any

from tests.goldens.cases.case import Case, Config, decoder

LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.3, 1.7],
    "long_factor": [1.0, 2.0, 5.0],
    "original_max_position_embeddings": 64,
}


def minicpm3(**fields: Any) -> Config:
    sizes = dict(q_lora_rank=14, kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=6, num_key_value_heads=4)
    return decoder("MiniCPM3ForCausalLM", "minicpm3", **{**sizes, "rope_theta": 1e4, **fields})


MINICPM3 = (
    Case(
        "minicpm3",
        minicpm3(
            hidden_size=44,
            num_hidden_layers=3,
            scale_emb=0.8,
            scale_depth=1.4,
            dim_model_base=88,
            v_head_dim=10,
            tie_word_embeddings=True,
            max_position_embeddings=64,
            rope_scaling=LONGROPE,
        ),
        switches=(
            {"rope_scaling": None},
            {"rope_scaling": {**LONGROPE, "short_factor": [1.0, 1.0, 1.0]}},
            {"scale_emb": 1},
            {"scale_depth": 1.0},
            {"dim_model_base": 44},
        ),
    ),
)

# As DeepSeek publishes it: the ratio of the two goes into the rope, the second squared into the attention's scale.
DEEPSEEK_YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.8,
    "mscale_all_dim": 1.0,
}


SIZES = dict(q_lora_rank=14, kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=6, v_head_dim=10)
EXPERTS = dict(n_routed_experts=8, moe_intermediate_size=19, first_k_dense_replace=1, num_experts_per_tok=3)


def deepseek(name: str, model_type: str, **fields: Any) -> Config:
    common = {**SIZES, **EXPERTS, "num_key_value_heads": 4, "rope_theta": 1e4}
    return decoder(f"{name}ForCausalLM", model_type, **{**common, **fields})


def without_q_lora(config: Config) -> Config:
    return {**config, "q_lora_rank": None}  # published as null, and not left out


DEEPSEEK_V2 = (
    Case(
        "deepseek-v2",
        deepseek(
            "DeepseekV2",
            "deepseek_v2",
            rope_scaling=DEEPSEEK_YARN,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            n_shared_experts=2,
            routed_scaling_factor=3.0,
            norm_topk_prob=False,
            scoring_func="softmax",
            num_hidden_layers=3,
        ),
        switches=(
            {"rope_scaling": None},
            {"rope_scaling": {**DEEPSEEK_YARN, "mscale_all_dim": 0}},
            {"topk_method": "greedy"},
            {"topk_group": 3},
            {"routed_scaling_factor": 1.0},
        ),
        gguf=False,
    ),
    Case(  # Lite: queries straight from the stream, experts of all groups
        "deepseek-v2-lite",
        without_q_lora(
            deepseek(
                "DeepseekV2",
                "deepseek_v2",
                rope_scaling={**DEEPSEEK_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
                topk_method="greedy",
                n_group=1,
                topk_group=1,
                n_shared_experts=1,
                routed_scaling_factor=1.0,
            )
        ),
        switches=({"num_experts_per_tok": 2},),
    ),
)

DEEPSEEK_V3 = (
    Case(  # as Kimi-K2 uses it: one group; and a rope by halves
        "deepseek-v3-one-group",
        deepseek(
            "DeepseekV3",
            "deepseek_v3",
            n_group=1,
            topk_group=1,
            rope_interleave=False,
            num_attention_heads=3,
            num_key_value_heads=3,
            routed_scaling_factor=2.8,
        ),
        switches=({"rope_interleave": True}, {"num_experts_per_tok": 2}),
        gguf=False,
    ),
    Case(
        "deepseek-v3",
        deepseek(
            "DeepseekV3",
            "deepseek_v3",
            rope_scaling=DEEPSEEK_YARN,
            attention_bias=True,
            scoring_func="sigmoid",
            topk_method="noaux_tc",
            n_group=4,
            topk_group=2,
            routed_scaling_factor=1.7,
            norm_topk_prob=True,
            n_shared_experts=1,
            num_hidden_layers=3,
        ),
        switches=(
            {"rope_scaling": None},
            {"rope_scaling": {**DEEPSEEK_YARN, "mscale_all_dim": 0}},
            {"rope_scaling": {**DEEPSEEK_YARN, "mscale": 1.0}},
            {"rope_interleave": False},
            {"topk_group": 3},
            {"routed_scaling_factor": 1.0},
            {"norm_topk_prob": False},
        ),
        gguf=False,
    ),
)

GLM4_MOE_LITE = (
    Case(
        "glm4-moe-lite",
        deepseek(
            "Glm4MoeLite",
            "glm4_moe_lite",
            num_hidden_layers=3,
            rope_theta=1e6,
            n_shared_experts=1,
            routed_scaling_factor=1.8,
            norm_topk_prob=True,
            n_group=2,
            topk_group=1,
        ),
        switches=({"topk_group": 2}, {"routed_scaling_factor": 1.0}, {"rope_theta": 1e4}),
    ),
)

# Fewer heads of the indexer tie: each score is a sum of values that are often exactly zero.
INDEXER = dict(index_topk=5, index_head_dim=10, index_n_heads=14)

SPARSE = (
    Case(
        "deepseek-v32",
        deepseek(
            "DeepseekV32",
            "deepseek_v32",
            **INDEXER,
            rope_scaling=DEEPSEEK_YARN,
            n_group=4,
            topk_group=2,
        ),
        switches=(
            {"index_topk": 6},
            {"rope_scaling": None},
            {"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa"},
        ),
        gguf=False,
    ),
    Case(
        "glm-moe-dsa",
        deepseek(
            "GlmMoeDsa",
            "glm_moe_dsa",
            **INDEXER,
            num_hidden_layers=4,
            index_topk_freq=2,
            index_skip_topk_offset=1,
        ),
        switches=({"index_topk": 6},),
    ),
)

V4: Config = dict(head_dim=16, qk_rope_head_dim=6, q_lora_rank=22, o_groups=2, o_lora_rank=9, num_key_value_heads=1)
V4 |= dict(index_topk=2, index_head_dim=14, index_n_heads=12, sliding_window=5, hc_mult=3, hc_sinkhorn_iters=4)
V4 |= dict(
    moe_intermediate_size=21, intermediate_size=None, n_routed_experts=5, num_experts_per_tok=2, swiglu_limit=0.7
)
V4 |= dict(num_hash_layers=1, compress_rate_csa=3, compress_rate_hca=5, rope_theta=1e4, compress_rope_theta=2e3)
V4_KINDS = ["compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"]

# transformers writes these names otherwise than they are published.
V4_NAMES = ((r"^model\.", ""), ("embed_tokens", "embed"), ("^lm_head", "head"), (r"attn\.norm", "attn.kv_norm"))
V4_NAMES += ((r"^hc_head\.hc_", "hc_head_"),)

DEEPSEEK_V4 = (
    Case(
        "deepseek-v4",
        decoder(
            "DeepseekV4ForCausalLM",
            "deepseek_v4",
            hidden_size=36,
            num_hidden_layers=4,
            layer_types=[*V4_KINDS, "compressed_sparse_attention"],
            rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            **V4,
        ),
        switches=(
            {"sliding_window": 6},
            {"index_topk": 3},
            {"swiglu_limit": 0.5},
            {"hc_sinkhorn_iters": 1},
            {"rope_scaling": None},
            {"layer_types": [*V4_KINDS, "sliding_attention"]},
        ),
        gguf=False,
        renamed=V4_NAMES,
    ),
)

MLA = MINICPM3 + DEEPSEEK_V2 + DEEPSEEK_V3 + GLM4_MOE_LITE + SPARSE + DEEPSEEK_V4
