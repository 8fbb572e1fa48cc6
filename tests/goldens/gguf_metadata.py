"""The metadata that llama.cpp's converter writes for a model: its sizes, experts, scales and rope."""

from __future__ import annotations

import math
from typing import Any

from gguf import ExpertGatingFuncType, GGUFWriter, RopeScalingType

from tests.goldens.gguf_families import GRANITES, LFM2S, PAIRED

ROTARY = {
    "glm": 0.5,
    "glm4": 0.5,
    "glm4_moe": 0.5,
    "phi": 0.5,
    "phi3": 1.0,
    "stablelm": 0.25,
    "cohere2": 1.0,
}  # share of a head that turns, by default

# What configs leave to their classes, and the usual names of sizes where they have others.
IMPLIED: dict[str, dict[str, Any]] = {
    "gpt2": {"layer_norm_eps": 1e-5},
    "glm_moe_dsa": {"n_shared_experts": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True},
}
IMPLIED["glm_moe_dsa"] |= {"n_group": 1, "topk_group": 1}
SIZES = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
SIZES |= {"n_positions": "max_position_embeddings"}


def spelled_out(config: dict[str, Any]) -> dict[str, Any]:
    """The config as its class reads it."""
    usual = {usual: config[own] for own, usual in SIZES.items() if own in config}
    if "n_embd" in config:
        usual["intermediate_size"] = 4 * config["n_embd"]
    return {**IMPLIED.get(config["model_type"], {}), **usual, **config}


def head_dim(config: dict[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Those of the full layers, where windowed ones have their own."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return given.get("full_attention", given)


def rope_theta(config: dict[str, Any]) -> float | None:
    return config.get("rope_theta") or rope_parameters(config).get("rope_theta")


def windowed_layers(config: dict[str, Any]) -> list[bool]:
    """OLMo 3 lists the kinds of its layers; EXAONE 4 may say that one in so many has no window."""
    if "layer_types" in config:
        return [kind == "sliding_attention" for kind in config["layer_types"]]
    return [(i + 1) % config["sliding_window_pattern"] != 0 for i in range(config["num_hidden_layers"])]


def add_shape(writer: GGUFWriter, config: dict[str, Any], family: str) -> None:
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    latents = "kv_lora_rank" in config and family != "minicpm3"
    kv_heads = 1 if latents else config.get("num_key_value_heads") or config["num_attention_heads"]
    if family in LFM2S:
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        kv_heads = [kv_heads if kind == "full_attention" else 0 for kind in config["layer_types"]]
    if family != "gpt2":
        writer.add_head_count_kv(kv_heads)
    if latents:
        add_latents(writer, config, family)
    if family == "minicpm3":
        add_minicpm3(writer, config)
    if "rms_norm_eps" in config or family in LFM2S:
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config["norm_eps"])
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["norm_epsilon"])
    if "head_dim" in config and family != "glm":
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if family in PAIRED:
        writer.add_rope_dimension_count(head_dim(config))
    if "rotary_dim" in config:
        writer.add_rope_dimension_count(config["rotary_dim"])
    if family in ROTARY:
        writer.add_rope_dimension_count(int(config.get("partial_rotary_factor", ROTARY[family]) * head_dim(config)))
    if family in ("gemma2", "gemma3_text", "phi3", "cohere2", "gpt_oss"):
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if family in ("olmo3", "exaone4") and "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern(windowed_layers(config))
    if family in ("cohere", "cohere2"):
        writer.add_logit_scale(config["logit_scale"])
        writer.add_rope_scaling_type(RopeScalingType.NONE)
    if family == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    if not latents and any(field in config for field in COUNTS):
        add_experts(writer, config, family)
    add_scales(writer, config, family)
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if family == "stablelm":
        writer.add_parallel_residual(config.get("use_parallel_residual", False))


COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def add_experts(writer: GGUFWriter, config: dict[str, Any], family: str) -> None:
    """Mixtures other than DeepSeek's."""
    writer.add_expert_count(next(config[field] for field in COUNTS if field in config))
    writer.add_expert_used_count(config.get("num_experts_per_tok") or config["moe_k"])
    size = config.get("moe_intermediate_size")
    if size or family in ("gpt_oss", "minimax_m2"):
        writer.add_expert_feed_forward_length(size or config["intermediate_size"])
    for field in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        if field in config:
            writer.add_expert_shared_feed_forward_length(config[field])
    for field in ("n_shared_experts", "moe_num_shared_experts"):
        if field in config:
            writer.add_expert_shared_count(config[field])
    if family in ("glm4_moe", "minimax_m2", "lfm2_moe"):
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    if family == "glm4_moe":
        writer.add_nextn_predict_layers(config.get("num_nextn_predict_layers", 0))
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
    if family == "lfm2_moe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
    if family == "ernie4_5_moe":
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])


def add_scales(writer: GGUFWriter, config: dict[str, Any], family: str) -> None:
    """Granite's constants, and MiniCPM's, which are the same in another spelling."""
    if family in GRANITES:
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if family == "minicpm":
        writer.add_embedding_scale(config["scale_emb"])
        writer.add_residual_scale(config["scale_depth"] / math.sqrt(config["num_hidden_layers"]))
        writer.add_logit_scale(config["hidden_size"] / config["dim_model_base"])


def add_latents(writer: GGUFWriter, config: dict[str, Any], family: str) -> None:
    """Multi-head latent attention and DeepSeek's mixtures."""
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    if config.get("q_lora_rank"):
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + rotated)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotated)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(rotated)
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    if config.get("norm_topk_prob"):
        writer.add_expert_weights_norm(True)
    if family == "glm_moe_dsa":
        add_indexer(writer, config)
    softmax = family == "deepseek_v2"
    writer.add_expert_gating_func(ExpertGatingFuncType.SOFTMAX if softmax else ExpertGatingFuncType.SIGMOID)
    if multiplier := (config.get("rope_scaling") or {}).get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * multiplier)


def add_minicpm3(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """Heads of values are as wide as their share of the model in those that are published, and files leave it out."""
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    writer.add_value_length(config["v_head_dim"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])


def add_indexer(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """Which layers choose is a list that configs may leave to two numbers."""
    writer.add_indexer_head_count(config["index_n_heads"])
    writer.add_indexer_key_length(config["index_head_dim"])
    writer.add_indexer_top_k(config["index_topk"])
    every, first = config["index_topk_freq"], config["index_skip_topk_offset"]
    full = [max(i - first + 1, 0) % every == 0 for i in range(config["num_hidden_layers"])]
    writer.add_array("glm-dsa.attention.indexer.types", full)


def add_rope(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """Llama 3's scaling is not here: it becomes a tensor of divisors."""
    rope = rope_parameters(config)
    if base := rope_theta(config):
        if "alpha" in rope:  # HunYuan's dynamic scaling, which is another base
            dim = head_dim(config)
            base *= rope["alpha"] ** (dim / (dim - 2))
        writer.add_rope_freq_base(base)
    if windowed := (config.get("rope_parameters") or {}).get("sliding_attention"):
        writer.add_rope_freq_base_swa(windowed["rope_theta"])
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "dynamic":
        writer.add_rope_scaling_type(RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1.0)
    elif kind == "longrope" and config["model_type"] == "phi3":
        writer.add_rope_scaling_attn_factors(longrope_attention(rope, config))
    elif kind == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        optional = {
            "attention_factor": writer.add_rope_scaling_yarn_attn_factor,
            "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
            "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
        }
        for field in optional.keys() & rope.keys():
            optional[field](rope[field])


def longrope_attention(rope: dict[str, Any], config: dict[str, Any]) -> float:
    """As the converter has it for published configs, which state neither this nor the factor."""
    if "attention_factor" in rope:
        return rope["attention_factor"]
    original = config["original_max_position_embeddings"]
    scale = rope.get("factor") or config["max_position_embeddings"] / original
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
