"""Phi-3 and Phi-4."""

from __future__ import annotations

from typing import Any

from tests.goldens.cases.case import NO_SCALING, Case, Config, decoder


def phi3(**fields: Any) -> Config:
    phi = {"rope_theta": 1e4, "pad_token_id": 0, "original_max_position_embeddings": 64, "max_position_embeddings": 64}
    return decoder("Phi3ForCausalLM", "phi3", **{**phi, **fields})


def longrope(count: int, **fields: Any) -> Config:
    short, long = [1.0 + 0.3 * i for i in range(count)], [1.5 + 2.0 * i for i in range(count)]
    return {"type": "longrope", "short_factor": short, "long_factor": long, **fields}


SHORT, LONG = longrope(6, factor=4.0), longrope(6, attention_factor=1.3)

PHI3 = (
    Case(  # as Phi-3-mini-4k: no scaling, a window
        "phi3-window",
        phi3(hidden_size=42, num_attention_heads=3, num_key_value_heads=3, sliding_window=6),
        switches=({"sliding_window": None},),
    ),
    Case(  # as Phi-4-mini: part of a head turns; no sequence is longer than the original length
        "phi3-longrope-short",
        phi3(
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=3,
            partial_rotary_factor=0.75,
            rope_scaling=SHORT,
            tie_word_embeddings=True,
        ),
        switches=(
            NO_SCALING,
            {"partial_rotary_factor": 1.0, "rope_scaling": longrope(8, factor=4.0)},
            {"rope_scaling": {**SHORT, "factor": 1.0}},
            {"rope_scaling": {**SHORT, "short_factor": SHORT["long_factor"]}},
        ),
    ),
    Case(  # every sequence of more than one token is longer than the original length; one token alone does not turn
        "phi3-longrope-long",
        phi3(rope_scaling=LONG, original_max_position_embeddings=1, max_position_embeddings=128),
        switches=(
            NO_SCALING,
            {"rope_scaling": {**LONG, "attention_factor": 1.0}},
            {"original_max_position_embeddings": 64},
        ),
    ),
)
