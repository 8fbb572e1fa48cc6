"""Qwen 2 and 3, dense."""

from __future__ import annotations

from typing import Any

from tests.goldens.cases.case import NO_SCALING, YARN_ROPE, Case, Config, decoder


def qwen2(**fields: Any) -> Config:
    qwen = {"rope_theta": 1e6, "rms_norm_eps": 1e-6, "use_sliding_window": False, "sliding_window": 5}
    return decoder("Qwen2ForCausalLM", "qwen2", **{**qwen, "max_window_layers": 2, **fields})


QWEN2 = (
    Case("qwen2-untied", qwen2(hidden_size=64, intermediate_size=96, num_hidden_layers=3)),
    Case(
        "qwen2-tied",
        qwen2(hidden_size=42, num_attention_heads=7, num_key_value_heads=1, tie_word_embeddings=True),
        switches=({"rope_theta": 1e4},),
    ),
    Case("qwen2-yarn", qwen2(rope_scaling={**YARN_ROPE, "type": "yarn"}, rope_theta=100.0), switches=(NO_SCALING,)),
    Case(
        "qwen2-sliding",
        qwen2(num_hidden_layers=4, use_sliding_window=True),
        switches=({"use_sliding_window": False}, {"max_window_layers": 1}, {"sliding_window": 6}),
        gguf=False,
    ),
)


def qwen3(**fields: Any) -> Config:
    return decoder("Qwen3ForCausalLM", "qwen3", **{"rope_theta": 1e6, "rms_norm_eps": 1e-6, "head_dim": 32, **fields})


QWEN3 = (
    Case("qwen3-untied", qwen3(hidden_size=64, intermediate_size=96, num_hidden_layers=3)),
    Case("qwen3-tied", qwen3(hidden_size=35, num_attention_heads=5, num_key_value_heads=1, tie_word_embeddings=True)),
    Case(
        "qwen3-mha", qwen3(head_dim=14, num_attention_heads=3, num_key_value_heads=3), switches=({"rope_theta": 1e4},)
    ),
    Case("qwen3-yarn", qwen3(head_dim=18, rope_scaling=YARN_ROPE, rope_theta=100.0), switches=(NO_SCALING,)),
)
