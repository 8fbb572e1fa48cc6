"""Llama."""

from __future__ import annotations

from typing import Any

from tests.goldens.cases.case import LLAMA3_ROPE, NO_SCALING, YARN_FULL, YARN_ROPE, Case, Config, decoder


def llama(**fields: Any) -> Config:
    return decoder("LlamaForCausalLM", "llama", **{"rope_theta": 10000.0, **fields})


LLAMA = (
    Case(
        "llama-mha",
        llama(vocab_size=283, hidden_size=60, num_attention_heads=5, num_key_value_heads=5, num_hidden_layers=3),
        tokens=(1, 24),
    ),
    Case("llama-gqa", llama(hidden_size=64, intermediate_size=96, num_attention_heads=8)),
    Case(
        "llama-tied",
        llama(hidden_size=36, intermediate_size=53, num_attention_heads=6, tie_word_embeddings=True, rope_theta=500.0),
        switches=({"rope_theta": 10000.0},),
    ),
    Case("llama-llama3-rope", llama(rope_scaling=LLAMA3_ROPE, head_dim=16), switches=(NO_SCALING,)),
    Case(
        "llama-yarn",
        llama(rope_scaling=YARN_ROPE, rope_theta=100.0, num_attention_heads=3, num_key_value_heads=1),
        switches=(NO_SCALING,),
    ),
    Case(  # as GGUF: what the converter writes; llama.cpp itself ignores these three keys for Llama
        "llama-yarn-attention-factor",
        llama(rope_scaling=YARN_FULL, head_dim=20),
        switches=(
            NO_SCALING,
            {"rope_scaling": {**YARN_FULL, "attention_factor": None}},
            {"rope_scaling": {**YARN_FULL, "beta_fast": 32.0, "beta_slow": 1.0}},
        ),
    ),
    Case("llama-linear-rope", llama(rope_scaling={"type": "linear", "factor": 2.5}), switches=(NO_SCALING,)),
    Case(
        "llama-rope-parameters",  # as transformers 5 spells it
        llama(rope_theta=None, rope_parameters={**LLAMA3_ROPE, "rope_theta": 2000.0}),
        switches=({"rope_parameters": {"rope_type": "default", "rope_theta": 2000.0}},),
    ),
    Case(
        "llama-bias",
        llama(attention_bias=True, mlp_bias=True, hidden_size=40),
        switches=({"attention_bias": False}, {"mlp_bias": False}),
    ),
    Case("llama-head-dim", llama(head_dim=10, hidden_size=28, num_attention_heads=7, num_key_value_heads=1)),
)
