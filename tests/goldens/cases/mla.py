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
        gguf=False,
    ),
)
