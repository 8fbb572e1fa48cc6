"""Gemma 1 to 4, text."""

from __future__ import annotations

from typing import Any

from tests.goldens.cases.case import NO_SCALING, Case, Config, decoder

GEMMA = (
    Case(  # untied, unlike those that exist: with a tied head, tiny models repeat their input
        "gemma",
        decoder(
            "GemmaForCausalLM",
            "gemma",
            head_dim=18,
            num_key_value_heads=1,
            rope_theta=10000.0,
            hidden_act="gelu_pytorch_tanh",
        ),
        switches=({"rope_theta": 100.0},),
        zero_centred_norms=True,
    ),
)


def gemma2(**fields: Any) -> Config:
    gemma: Config = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 5, "rope_theta": 10000.0}
    gemma |= {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "tie_word_embeddings": True}
    gemma |= {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": None, **fields}
    return decoder("Gemma2ForCausalLM", "gemma2", **gemma)


GEMMA2 = (
    Case(
        "gemma2",
        gemma2(hidden_size=44, num_hidden_layers=3),
        switches=(
            {"sliding_window": 6},
            {"query_pre_attn_scalar": 8},
            {"attn_logit_softcapping": None},
            {"final_logit_softcapping": None},
        ),
        zero_centred_norms=True,
    ),
)


def gemma3(**fields: Any) -> Config:
    gemma: Config = {"rms_norm_eps": 1e-6, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 5}
    gemma |= {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "hidden_act": None, **fields}
    return decoder("Gemma3ForCausalLM", "gemma3_text", **gemma)


GEMMA_ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 4e4},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}

GEMMA3 = (
    Case(  # five windowed layers to one full, the one pattern that a GGUF file implies
        "gemma3",
        gemma3(
            vocab_size=283,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=7,
            rope_theta=1e6,
            rope_local_base_freq=1e4,
        ),
        switches=({"sliding_window": 6}, {"rope_theta": 1e4}, {"rope_local_base_freq": 1e6}),
        tokens=(1, 24),
        zero_centred_norms=True,
    ),
    Case(
        "gemma3-pattern",
        gemma3(
            num_hidden_layers=4,
            sliding_window_pattern=3,
            num_key_value_heads=1,
            head_dim=22,
            query_pre_attn_scalar=41,
            rope_theta=1e6,
            rope_local_base_freq=5e3,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
        switches=(NO_SCALING, {"query_pre_attn_scalar": 22}, {"sliding_window_pattern": 2}, {"sliding_window": 4}),
        zero_centred_norms=True,
        gguf=False,
    ),
    Case(
        "gemma3-layer-types",  # as transformers 5 spells it
        gemma3(
            hidden_size=45,
            num_attention_heads=3,
            num_key_value_heads=3,
            num_hidden_layers=3,
            tie_word_embeddings=False,
            sliding_window=7,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
            rope_parameters=GEMMA_ROPES,
            final_logit_softcapping=4.0,
        ),
        switches=(
            {"layer_types": ["full_attention", "full_attention", "sliding_attention"]},
            {"rope_parameters": {**GEMMA_ROPES, "sliding_attention": GEMMA_ROPES["full_attention"]}},
            {"final_logit_softcapping": None},
        ),
        zero_centred_norms=True,
        gguf=False,
    ),
)


def gemma4(**fields: Any) -> Config:
    gemma: Config = {"rms_norm_eps": 1e-6, "head_dim": 12, "global_head_dim": 20, "sliding_window": 5}
    gemma |= {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "hidden_act": None}
    gemma |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 107, "rope_parameters": GEMMA4_ROPES}
    return decoder("Gemma4ForCausalLM", "gemma4_text", **{**gemma, **fields})


GEMMA4_ROPES: Config = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 4e3, "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}
ALL_TURNING = {**GEMMA4_ROPES["full_attention"], "partial_rotary_factor": 1.0}

GEMMA4 = (
    Case(  # the last three layers have no keys of their own
        "gemma4",
        gemma4(
            hidden_size=44,
            num_hidden_layers=6,
            layer_types=["sliding_attention", "full_attention"] * 3,
            num_kv_shared_layers=3,
            use_double_wide_mlp=True,
            hidden_size_per_layer_input=9,
            final_logit_softcapping=4.0,
        ),
        switches=(
            {"sliding_window": 6},
            {"rope_parameters": {**GEMMA4_ROPES, "full_attention": ALL_TURNING}},
            {"final_logit_softcapping": None},
        ),
    ),
    Case(
        "gemma4-moe",
        gemma4(
            num_hidden_layers=3,
            layer_types=["sliding_attention", "full_attention", "full_attention"],
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
            enable_moe_block=True,
            num_experts=5,
            top_k_experts=2,
            moe_intermediate_size=21,
        ),
        switches=({"sliding_window": 6}, {"top_k_experts": 1}),
    ),
)
