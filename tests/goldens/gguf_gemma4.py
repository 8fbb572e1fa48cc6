"""What llama.cpp's converter does with Gemma 4."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from gguf import GGUFWriter

Config = dict[str, Any]


def gemma4_name(name: str) -> str:
    """Scalars get a kind, and an expert's scale is that of its down projection."""
    found = re.fullmatch(r"model\.layers\.(\d+)\.router\.(scale|per_expert_scale)", name)
    if found:
        return f"blk.{found[1]}.{'ffn_gate_inp' if found[2] == 'scale' else 'ffn_down_exps'}.scale"
    return f"{name}.weight" if name.endswith("layer_scalar") else name


def full_divisors(config: Config) -> np.ndarray:
    """What the rope of full layers divides its frequencies by, `[dim / 2]`: channels that do not turn have 1e30."""
    dim, part = config["global_head_dim"], config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    return np.where(np.arange(dim // 2) < int(dim * part / 2), 1.0, 1e30).astype(np.float32)


def add_gemma4(writer: GGUFWriter, config: Config) -> None:
    layers, shared = config["num_hidden_layers"], config.get("num_kv_shared_layers", 0)
    windowed = [kind == "sliding_attention" for kind in config["layer_types"]]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windowed)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    full_heads, heads = config.get("num_global_key_value_heads"), config["num_key_value_heads"]
    writer.add_head_count_kv([heads if local else full_heads for local in windowed] if full_heads else heads)
    width, wide = config["intermediate_size"], config.get("use_double_wide_mlp")
    writer.add_feed_forward_length([width * (1 + (i >= layers - shared)) for i in range(layers)] if wide else width)
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(config["global_head_dim"])
    for add in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
        add(config["head_dim"])
    if "final_logit_softcapping" in config:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
