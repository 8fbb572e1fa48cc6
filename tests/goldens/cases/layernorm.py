"""Families with LayerNorm: StarCoder2, StableLM, Phi, Cohere."""

from __future__ import annotations

from typing import Any

from tests.goldens.cases.case import Case, Config, decoder


def starcoder2(**fields: Any) -> Config:
    starcoder: Config = {"norm_epsilon": 1e-5, "rms_norm_eps": None, "rope_theta": 1e5, "hidden_act": None}
    starcoder |= {"tie_word_embeddings": None, "use_bias": True, "sliding_window": 6}
    return decoder("Starcoder2ForCausalLM", "starcoder2", **{**starcoder, **fields})


STARCODER2 = (
    Case(  # tied and gelu_pytorch_tanh by default
        "starcoder2",
        starcoder2(hidden_size=36, num_attention_heads=6, num_hidden_layers=3),
        switches=({"use_bias": False}, {"sliding_window": None}, {"rope_theta": 1e3}, {"hidden_act": "relu"}),
        gguf=False,  # llama.cpp knows of no window here
    ),
    Case("starcoder2-full", starcoder2(sliding_window=None, tie_word_embeddings=False)),
)


def stablelm(**fields: Any) -> Config:
    stable: Config = {"layer_norm_eps": 1e-5, "rms_norm_eps": None, "partial_rotary_factor": 0.5}
    return decoder("StableLmForCausalLM", "stablelm", **{**stable, **fields})


STABLELM = (
    Case(  # as StableLM 2 1.6B
        "stablelm-bias",
        stablelm(hidden_size=60, num_attention_heads=5, num_key_value_heads=5, use_qkv_bias=True),
        switches=({"use_qkv_bias": False}, {"partial_rotary_factor": 1.0}),
    ),
    Case(  # as StableLM 2 12B; a quarter of each head turns by default
        "stablelm-parallel",
        stablelm(
            hidden_size=64,
            num_hidden_layers=3,
            use_parallel_residual=True,
            qk_layernorm=True,
            partial_rotary_factor=None,
            tie_word_embeddings=True,
        ),
        switches=({"use_parallel_residual": False}, {"qk_layernorm": False}, {"partial_rotary_factor": 0.5}),
    ),
)


def phi(**fields: Any) -> Config:
    ours: Config = {"layer_norm_eps": 1e-5, "rms_norm_eps": None, "num_key_value_heads": None, "hidden_act": None}
    return decoder("PhiForCausalLM", "phi", **{**ours, "num_attention_heads": 3, **fields})


PHI = (
    Case(
        "phi",
        phi(hidden_size=48, intermediate_size=192, num_hidden_layers=3, partial_rotary_factor=0.5),
        switches=({"partial_rotary_factor": 0.25}, {"hidden_act": "relu"}),
    ),
    Case(
        "phi-qk-norm",
        phi(hidden_size=60, num_attention_heads=6, num_key_value_heads=2, partial_rotary_factor=0.4, qk_layernorm=True),
        switches=({"partial_rotary_factor": 0.8}, {"qk_layernorm": False}),
        gguf=False,  # llama.cpp has no norms here
    ),
)


def cohere(architecture: str, model_type: str, **fields: Any) -> Config:
    ours: Config = {"layer_norm_eps": 1e-5, "rms_norm_eps": None, "rope_theta": 5e4, "logit_scale": 0.5}
    return decoder(architecture, model_type, **{**ours, "tie_word_embeddings": None, **fields})


COHERE = (
    Case(  # theta 500000 by default
        "cohere",
        cohere(
            "CohereForCausalLM",
            "cohere",
            hidden_size=45,
            num_attention_heads=3,
            num_key_value_heads=3,
            head_dim=14,
            rope_theta=None,
            attention_bias=True,
        ),
        switches=({"logit_scale": 1.0}, {"rope_theta": 1e3}, {"attention_bias": False}),
        gguf=False,  # llama.cpp has no biases here
    ),
    Case(  # as Command R+
        "cohere-qk-norm",
        cohere("CohereForCausalLM", "cohere", use_qk_norm=True, num_hidden_layers=3),
        switches=({"use_qk_norm": False}, {"rope_theta": 1e3}),
    ),
)
COHERE2 = (
    Case(  # three windowed layers to one full, by default
        "cohere2",
        cohere("Cohere2ForCausalLM", "cohere2", hidden_size=40, num_hidden_layers=4, sliding_window=5, logit_scale=0.7),
        switches=({"sliding_window": 6}, {"sliding_window_pattern": 2}, {"logit_scale": 1.0}, {"rope_theta": 1e3}),
    ),
)


def opt(**fields: Any) -> Config:
    ours: Config = {"ffn_dim": 77, "intermediate_size": None, "rms_norm_eps": None, "hidden_act": None}
    ours |= {"num_key_value_heads": None, "tie_word_embeddings": None, "pad_token_id": 0, "do_layer_norm_before": True}
    return decoder("OPTForCausalLM", "opt", **{**ours, **fields})


OPT = (
    Case(
        "opt",
        opt(num_hidden_layers=3, num_attention_heads=3, activation_function="relu"),
        switches=({"do_layer_norm_before": False}, {"activation_function": "gelu"}, {"enable_bias": False}),
        gguf=False,
    ),
    Case(  # as OPT 350M
        "opt-norm-after",
        opt(hidden_size=40, do_layer_norm_before=False, word_embed_proj_dim=22),
        switches=({"do_layer_norm_before": True},),
        gguf=False,
    ),
)


def gpt2(**fields: Any) -> Config:
    """Its own names of sizes, as published; most of the others are left out."""
    config = decoder("GPT2LMHeadModel", "gpt2", n_embd=48, n_layer=2, n_head=4, n_positions=128, **fields)
    kept = ("architectures", "model_type", "vocab_size", "bos_token_id", "eos_token_id", "torch_dtype")
    return {name: value for name, value in config.items() if name in kept or name.startswith("n_") or name in fields}


GPT2 = (
    Case("gpt2", gpt2(activation_function="gelu_new"), switches=({"activation_function": "relu"},)),
    Case(
        "gpt2-scaled",
        gpt2(n_inner=77, scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False),
        switches=({"scale_attn_by_inverse_layer_idx": False}, {"scale_attn_weights": False}),
        gguf=False,  # llama.cpp knows of neither
    ),
)

LAYERNORM = STARCODER2 + STABLELM + PHI + COHERE + COHERE2 + OPT + GPT2
