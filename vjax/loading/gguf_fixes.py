"""What single architectures add to a config translated from GGUF, or call otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from vjax.loading.gguf_fields import Fields
from vjax.loading.gguf_latents import mixture

GEMMA2_27B_LAYERS, GEMMA3_27B_LAYERS = 46, 62


def _gemma2(hf: dict[str, Any], fields: Fields) -> None:
    """What llama.cpp knows of Gemma 2 without asking the file."""
    is_27b = hf["num_hidden_layers"] == GEMMA2_27B_LAYERS
    hf["query_pre_attn_scalar"] = hf["hidden_size"] // hf["num_attention_heads"] if is_27b else hf["head_dim"]
    hf["attn_logit_softcapping"] = fields.optional("attn_logit_softcapping", float) or 50.0
    hf["final_logit_softcapping"] = fields.optional("final_logit_softcapping", float) or 30.0


def _gemma3(hf: dict[str, Any], fields: Fields) -> None:
    """What llama.cpp knows of Gemma 3 without asking the file."""
    if fields.optional("rope.freq_base", float) is None:
        hf["rope_theta"] = 1e6
    hf["rope_local_base_freq"] = fields.optional("rope.freq_base_swa", float) or 10000.0
    hf["hidden_activation"] = "gelu_pytorch_tanh"
    is_27b = hf["num_hidden_layers"] == GEMMA3_27B_LAYERS
    hf["query_pre_attn_scalar"] = hf["hidden_size"] // hf["num_attention_heads"] if is_27b else hf["head_dim"]
    hf["final_logit_softcapping"] = fields.optional("final_logit_softcapping", float) or None
    hf["layer_types"] = layer_types(hf, fields, 6)


def layer_types(hf: dict[str, Any], fields: Fields, default: int) -> list[str]:
    """Which layers have the window, if there is one: as the file lists them, or all but one in so many."""
    key, layers = f"{fields.architecture}.attention.sliding_window_pattern", hf["num_hidden_layers"]
    pattern = fields.gguf.metadata.get(key, default)
    if "sliding_window" not in hf:
        pattern = [False] * layers
    elif type(pattern) is int and pattern > 0:
        pattern = [(i + 1) % pattern != 0 for i in range(layers)]
    elif not isinstance(pattern, list):
        raise fields.fail(key, f"must be a list or a positive number, found {pattern!r}"[:200])
    if len(pattern) != layers:
        raise fields.fail(key, f"has {len(pattern)} items for {layers} layers")
    return ["sliding_attention" if windowed else "full_attention" for windowed in pattern]


def _starcoder2(hf: dict[str, Any], fields: Fields) -> None:
    hf["norm_epsilon"], hf["use_bias"] = hf["rms_norm_eps"], hf["attention_bias"]


def _stablelm(hf: dict[str, Any], fields: Fields) -> None:
    names = fields.gguf.names()
    hf["layer_norm_eps"], hf["use_qkv_bias"] = hf["rms_norm_eps"], hf["attention_bias"]
    hf["qk_layernorm"] = "blk.0.attn_q_norm.weight" in names
    hf["use_parallel_residual"] = "blk.0.ffn_norm.weight" not in names
    hf.setdefault("partial_rotary_factor", 1.0)  # the family's own default is a quarter


def _phi2(hf: dict[str, Any], fields: Fields) -> None:
    hf["layer_norm_eps"] = hf["rms_norm_eps"]
    hf.setdefault("partial_rotary_factor", 1.0)  # the family's own default is a half


def _cohere(hf: dict[str, Any], fields: Fields) -> None:
    """llama.cpp knows of no window pattern but Cohere 2's three to one, which is its default here too."""
    hf["layer_norm_eps"] = hf["rms_norm_eps"]
    hf["use_qk_norm"] = "blk.0.attn_q_norm.weight" in fields.gguf.names()
    scale = fields.optional("logit_scale", float)
    if not scale:
        raise fields.fail(f"{fields.architecture}.logit_scale", "is missing")
    hf["logit_scale"] = scale


def _lfm2(hf: dict[str, Any], fields: Fields) -> None:
    key = f"{fields.architecture}.attention.head_count_kv"
    heads = fields.gguf.metadata.get(key)
    if not isinstance(heads, list) or len(heads) != hf["num_hidden_layers"]:
        raise fields.fail(key, "must be a list with a number for every layer")
    hf["layer_types"] = ["full_attention" if count else "conv" for count in heads]
    hf["conv_L_cache"] = fields.integer("shortconv.l_cache")
    hf["norm_eps"] = hf["rms_norm_eps"]
    hf["block_auto_adjust_ff_dim"] = False  # the converter has done it


def _experts(hf: dict[str, Any], fields: Fields) -> None:
    """Their number under the names that most configs have, and an expert's width."""
    count, used = fields.integer("expert_count"), fields.integer("expert_used_count")
    hf |= {"num_experts": count, "num_local_experts": count, "num_experts_per_tok": used}
    hf["moe_intermediate_size"] = fields.optional("expert_feed_forward_length", int) or hf["intermediate_size"]


def _llama(hf: dict[str, Any], fields: Fields) -> None:
    """Mixtral has Llama's architecture there, and InternLM 3, whose outputs have no bias where queries may have one."""
    if fields.optional("expert_count", int):
        hf |= {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
        _experts(hf, fields)
    elif hf["attention_bias"] and "blk.0.attn_output.bias" not in fields.gguf.names():
        hf |= {"model_type": "internlm3", "architectures": ["InternLM3ForCausalLM"], "qkv_bias": True}


def _qwen_moe(hf: dict[str, Any], fields: Fields) -> None:
    """llama.cpp knows of no layers without experts; old files leave widths to be computed."""
    _experts(hf, fields)
    if fields.optional("expert_feed_forward_length", int) is None:
        hf["moe_intermediate_size"] = max(hf["intermediate_size"] // hf["num_experts_per_tok"], 1)
    shared = fields.optional("expert_shared_feed_forward_length", int)
    hf["shared_expert_intermediate_size"] = shared or hf["intermediate_size"]
    hf["qkv_bias"] = hf["attention_bias"]
    hf["norm_topk_prob"] = fields.architecture == "qwen3moe"


def _own_width(hf: dict[str, Any], fields: Fields) -> None:
    """Experts whose width the config calls `intermediate_size`."""
    _experts(hf, fields)
    hf["intermediate_size"] = hf["moe_intermediate_size"]


def _lfm2_moe(hf: dict[str, Any], fields: Fields) -> None:
    _lfm2(hf, fields)
    _experts(hf, fields)
    hf["num_dense_layers"] = fields.optional("leading_dense_block_count", int) or 0


def _gpt_oss(hf: dict[str, Any], fields: Fields) -> None:
    _own_width(hf, fields)
    if "rope_scaling" in hf:
        hf["rope_scaling"]["truncate"] = False  # which files do not say


def _seed_oss(hf: dict[str, Any], fields: Fields) -> None:
    hf["attention_out_bias"] = "blk.0.attn_output.bias" in fields.gguf.names()


def _olmo2(hf: dict[str, Any], fields: Fields) -> None:
    """OLMo 3 is OLMo 2 with windows there; what stretches the rope is for full layers only."""
    if "sliding_window" in hf:
        hf |= {"model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"]}
        hf["layer_types"] = layer_types(hf, fields, 4)
        base = fields.optional("rope.freq_base_swa", float) or hf["rope_theta"]
        full = {**hf.pop("rope_scaling", {}), "rope_theta": hf["rope_theta"]}
        hf["rope_parameters"] = {"full_attention": full, "sliding_attention": {"rope_theta": base}}


def _exaone4(hf: dict[str, Any], fields: Fields) -> None:
    hf["layer_types"] = layer_types(hf, fields, 4)
    hf.setdefault("sliding_window", None)  # the family has one by default


def _glm4(hf: dict[str, Any], fields: Fields) -> None:
    hf.setdefault("partial_rotary_factor", 1.0)  # the family's own default is a half


def _chatglm(hf: dict[str, Any], fields: Fields) -> None:
    """GLM-4's first release; queries, keys and values lie together where its own checkpoint was converted."""
    hf["attention_bias"] = hf["attention_bias"] or "blk.0.attn_qkv.bias" in fields.gguf.names()
    _glm4(hf, fields)


def _gpt2(hf: dict[str, Any], fields: Fields) -> None:
    hf["layer_norm_epsilon"], hf["n_inner"] = hf["rms_norm_eps"], hf["intermediate_size"]
    hf["n_positions"] = hf["max_position_embeddings"]


def _glm4_moe(hf: dict[str, Any], fields: Fields) -> None:
    """Layers that predict further tokens count as blocks there."""
    hf |= mixture(fields, sigmoid=True)
    hf["num_hidden_layers"] -= fields.optional("nextn_predict_layers", int) or 0
    hf["use_qk_norm"] = "blk.0.attn_q_norm.weight" in fields.gguf.names()
    _glm4(hf, fields)


def _granite(hf: dict[str, Any], fields: Fields) -> None:
    names = {"attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
             "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale"}  # fmt: skip
    hf |= {name: fields.optional(key, float) or 1.0 for name, key in names.items()}


def _granite_moe(hf: dict[str, Any], fields: Fields) -> None:
    _own_width(hf, fields)
    _granite(hf, fields)
    if shared := fields.optional("expert_shared_feed_forward_length", int):
        hf |= {"architectures": ["GraniteMoeSharedForCausalLM"], "shared_intermediate_size": shared}


def _minicpm(hf: dict[str, Any], fields: Fields) -> None:
    """Its constants are there as Granite's are. Old files have none and mean the family's defaults."""
    if embedding := fields.optional("embedding_scale", float):
        hf["scale_emb"] = embedding
    if residual := fields.optional("residual_scale", float):
        hf["scale_depth"] = residual * math.sqrt(hf["num_hidden_layers"])
    if logits := fields.optional("logit_scale", float):
        hf["dim_model_base"] = hf["hidden_size"] / logits


def _ernie(hf: dict[str, Any], fields: Fields) -> None:
    hf["use_bias"] = hf["attention_bias"]


def _ernie_moe(hf: dict[str, Any], fields: Fields) -> None:
    _experts(hf, fields)
    hf |= {
        "moe_num_experts": hf["num_experts"],
        "moe_k": hf["num_experts_per_tok"],
        "moe_num_shared_experts": fields.optional("expert_shared_count", int) or 0,
        "moe_layer_start_index": fields.optional("leading_dense_block_count", int) or 0,
        "moe_layer_interval": fields.optional("interleave_moe_layer_step", int) or 1,
    }


def _internlm2(hf: dict[str, Any], fields: Fields) -> None:
    hf["bias"] = hf["attention_bias"]


FIXES: dict[str, Callable[[dict[str, Any], Fields], None]] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2_moe,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "phi2": _phi2,
    "command-r": _cohere,
    "cohere2": _cohere,
    "llama": _llama,
    "qwen2moe": _qwen_moe,
    "qwen3moe": _qwen_moe,
    "gpt-oss": _gpt_oss,
    "glm4moe": _glm4_moe,
    "minimax-m2": _own_width,
    "granite": _granite,
    "granitemoe": _granite_moe,
    "minicpm": _minicpm,
    "seed_oss": _seed_oss,
    "ernie4_5": _ernie,
    "glm4": _glm4,
    "chatglm": _chatglm,
    "gpt2": _gpt2,
    "olmo2": _olmo2,
    "exaone4": _exaone4,
    "ernie4_5-moe": _ernie_moe,
    "olmoe": _own_width,
    "internlm2": _internlm2,
}
