"""Names that no fixture model has; the rest is tested on whole models."""

from __future__ import annotations

import pytest

from vjax.loading.gguf_names import to_gguf_name, to_hf_name

EXPERTS = [
    ("model.layers.3.mlp.experts.17.gate_proj.weight", ("blk.3.ffn_gate_exps.weight", 17)),
    ("model.layers.0.mlp.experts.0.down_proj.weight", ("blk.0.ffn_down_exps.weight", 0)),
    ("model.layers.12.mlp.experts.5.up_proj.weight", ("blk.12.ffn_up_exps.weight", 5)),
]


@pytest.mark.parametrize(("hf", "gguf"), EXPERTS)
def test_an_expert_is_a_part_of_one_tensor(hf: str, gguf: tuple[str, int]) -> None:
    assert to_gguf_name(hf, "qwen3moe") == gguf
    assert to_hf_name(gguf[0], "qwen3moe") is None


def test_router_and_shared_expert() -> None:
    assert to_gguf_name("model.layers.1.mlp.gate.weight", "qwen2moe") == "blk.1.ffn_gate_inp.weight"
    name = "model.layers.1.mlp.shared_expert.down_proj.weight"
    assert to_gguf_name(name, "qwen2moe") == "blk.1.ffn_down_shexp.weight"


def test_one_name_with_two_senses() -> None:
    name = "model.layers.7.post_attention_layernorm.weight"
    assert to_gguf_name(name, "llama") == "blk.7.ffn_norm.weight"
    assert to_gguf_name(name, "gemma3") == "blk.7.post_attention_norm.weight"


def test_unknown_names_stay() -> None:
    assert to_gguf_name("model.vision.patch.weight", "llama") == "model.vision.patch.weight"
    assert to_hf_name("blk.0.mystery.weight", "llama") is None
    assert to_hf_name("rope_freqs.weight", "llama") is None
