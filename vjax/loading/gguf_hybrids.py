"""What recurrent architectures and hybrids add to a config translated from GGUF."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vjax.errors import ModelError
from vjax.loading.gguf_fields import Fields

SIGMOID = 2  # of `expert_gating_func`
ROTATED = "rope.dimension_count"


def _has(fields: Fields, part: str) -> bool:
    """Whether any layer has the tensor: not all layers are of one kind."""
    return any(name.endswith(f".{part}") for name in fields.gguf.names())


def _per_layer(fields: Fields, name: str, layers: int) -> list[Any]:
    """A list with a value for each layer; behind them, those of layers that predict further tokens."""
    key = f"{fields.architecture}.{name}"
    values = fields.gguf.metadata.get(key)
    if not isinstance(values, list) or len(values) < layers:
        raise fields.fail(key, f"must be a list with a value for each of {layers} layers")
    return values[:layers]


def _heads_and_width(fields: Fields) -> tuple[int, int]:
    """Of a recurrent layer, whose heads `time_step_rank` counts."""
    heads, inner = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
    if inner % heads:
        key = f"{fields.architecture}.ssm.inner_size"
        raise fields.fail(key, f"is {inner}, which {heads} heads cannot share")
    return heads, inner // heads


def _refuse(fields: Fields, name: str, kind: type, plain: Any) -> None:
    """Only the value that says nothing will do."""
    value = fields.optional(name, kind)
    if value not in (None, plain):
        raise ModelError(
            f"{fields.gguf.path}: metadata key '{fields.architecture}.{name}' is {value}; only {plain} is supported."
        )


def _own_layers(hf: dict[str, Any], fields: Fields) -> int:
    """Without those that predict further tokens, which count as blocks there."""
    further = fields.optional("nextn_predict_layers", int) or 0
    if not 0 <= further < hf["num_hidden_layers"]:
        key = f"{fields.architecture}.nextn_predict_layers"
        raise fields.fail(key, f"is {further}, of {hf['num_hidden_layers']} layers")
    return hf["num_hidden_layers"] - further


def _mamba2(hf: dict[str, Any], fields: Fields) -> None:
    heads, width = _heads_and_width(fields)
    del hf["max_position_embeddings"]  # the converter makes it up
    hf |= {
        "expand": max(heads * width // hf["hidden_size"], 1),
        "num_heads": heads,
        "head_dim": width,
        "n_groups": fields.integer("ssm.group_count"),
        "state_size": fields.integer("ssm.state_size"),
        "conv_kernel": fields.integer("ssm.conv_kernel"),
        "use_bias": _has(fields, "ssm_in.bias"),
        "use_conv_bias": _has(fields, "ssm_conv1d.bias"),
        "layer_norm_epsilon": hf["rms_norm_eps"],
    }


def _mamba_fields(fields: Fields) -> dict[str, Any]:
    """Those of the Mamba-2 layers of a hybrid that spells them `mamba_...`."""
    heads, width = _heads_and_width(fields)
    return {
        "mamba_d_ssm": heads * width,
        "mamba_n_heads": heads,
        "mamba_d_head": width,
        "mamba_n_groups": fields.integer("ssm.group_count"),
        "mamba_d_state": fields.integer("ssm.state_size"),
        "mamba_d_conv": fields.integer("ssm.conv_kernel"),
        "mamba_proj_bias": _has(fields, "ssm_in.bias"),
        "mamba_conv_bias": _has(fields, "ssm_conv1d.bias"),
        "attention_bias": _has(fields, "attn_q.bias"),
        "mlp_bias": _has(fields, "ffn_up.bias"),
    }


def _bamba(hf: dict[str, Any], fields: Fields) -> None:
    """Granite 4 has the same architecture there, without rope and with scales and experts that Bamba lacks."""
    _refuse(fields, "rope.scaling.finetuned", bool, True)
    _refuse(fields, "expert_count", int, 0)
    _refuse(fields, "attention.scale", float, 0.0)  # which means by the width of a head
    for name in ("embedding_scale", "residual_scale", "logit_scale"):
        _refuse(fields, name, float, 1.0)
    heads = _per_layer(fields, "attention.head_count_kv", hf["num_hidden_layers"])
    hf |= _mamba_fields(fields)
    hf |= {
        "attn_layer_indices": [i for i, count in enumerate(heads) if count],
        "rope_parameters": {"partial_rotary_factor": hf.pop("partial_rotary_factor", 1.0)},
    }


def _falcon_h1(hf: dict[str, Any], fields: Fields) -> None:
    """The converter has multiplied the multipliers in; llama.cpp knows of no norm before the gate."""
    hf |= _mamba_fields(fields)
    hf |= {
        "mamba_rms_norm": _has(fields, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": _has(fields, "ssm_out.bias"),
    }


def _nemotron_h(hf: dict[str, Any], fields: Fields) -> None:
    """What a layer is follows from two lists. The least time step is the family's, as files do not say."""
    layers = _own_layers(hf, fields)
    attending, inner = (_per_layer(fields, n, layers) for n in ("attention.head_count_kv", "feed_forward_length"))
    sparse = fields.architecture == "nemotron_h_moe"
    mlp, (heads, width) = "moe" if sparse else "mlp", _heads_and_width(fields)
    hf.pop("partial_rotary_factor", None)  # of a rope that there is not
    hf |= {
        "num_hidden_layers": layers,
        "layers_block_type": [
            "full_attention" if h else mlp if i else "linear_attention" for h, i in zip(attending, inner, strict=True)
        ],
        "mamba_num_heads": heads,
        "mamba_head_dim": width,
        "n_groups": fields.integer("ssm.group_count"),
        "ssm_state_size": fields.integer("ssm.state_size"),
        "conv_kernel": fields.integer("ssm.conv_kernel"),
        "use_bias": _has(fields, "ssm_in.bias"),
        "use_conv_bias": _has(fields, "ssm_conv1d.bias"),
        "mlp_bias": _has(fields, "ffn_up.bias"),
        "layer_norm_epsilon": hf["rms_norm_eps"],
    }
    if sparse:
        hf |= _nemotron_mixture(fields)


def _nemotron_mixture(fields: Fields) -> dict[str, Any]:
    return {
        "n_routed_experts": fields.integer("expert_count"),
        "num_experts_per_tok": fields.integer("expert_used_count"),
        "moe_intermediate_size": fields.integer("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": fields.integer("expert_shared_feed_forward_length"),
        "moe_latent_size": fields.optional("moe_latent_size", int),
        "norm_topk_prob": bool(fields.optional("expert_weights_norm", bool)),
        "routed_scaling_factor": fields.optional("expert_weights_scale", float) or 1.0,
        "n_group": fields.optional("expert_group_count", int) or 1,
        "topk_group": fields.optional("expert_group_used_count", int) or 1,
    }


def _qwen3_next(hf: dict[str, Any], fields: Fields) -> None:
    hf |= _delta_fields(hf, fields) | _qwen_experts(fields)


def _qwen3_5(hf: dict[str, Any], fields: Fields) -> None:
    """The sections of the rope tell positions of images apart; those of text are the same in all."""
    hf["num_hidden_layers"] = _own_layers(hf, fields)
    own = _delta_fields(hf, fields)
    repeats = own["linear_num_value_heads"] // own["linear_num_key_heads"]
    if repeats > 1 and own["linear_value_head_dim"] * repeats == own["linear_key_head_dim"]:
        key = f"{fields.architecture}.ssm.state_size"
        raise fields.fail(key, "is as much as all values of a key have, which llama.cpp does not do")
    hf |= own | {"linear_values_in_turn": repeats > 1}
    if fields.architecture == "qwen35moe":
        hf |= _qwen_experts(fields)


def _delta_fields(hf: dict[str, Any], fields: Fields) -> dict[str, Any]:
    """Those of Gated DeltaNet, and which layers attend."""
    heads, width = _heads_and_width(fields)
    every, layers = fields.optional("full_attention_interval", int) or 4, hf["num_hidden_layers"]
    recurrent = [(i + 1) % every != 0 for i in range(layers)]
    if f"{fields.architecture}.attention.recurrent_layers" in fields.gguf.metadata:
        recurrent = _per_layer(fields, "attention.recurrent_layers", layers)
    return {
        "layer_types": ["linear_attention" if each else "full_attention" for each in recurrent],
        "linear_num_value_heads": heads,
        "linear_value_head_dim": width,
        "linear_num_key_heads": fields.integer("ssm.group_count"),
        "linear_key_head_dim": fields.integer("ssm.state_size"),
        "linear_conv_kernel_dim": fields.integer("ssm.conv_kernel"),
        "partial_rotary_factor": hf.get("partial_rotary_factor", 1.0),  # the family's own default is a quarter
        "attention_bias": _has(fields, "attn_q.bias"),
    }


def _qwen_experts(fields: Fields) -> dict[str, Any]:
    return {
        "num_experts": fields.integer("expert_count"),
        "num_experts_per_tok": fields.integer("expert_used_count"),
        "moe_intermediate_size": fields.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": fields.integer("expert_shared_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _kimi_linear(hf: dict[str, Any], fields: Fields) -> None:
    """Of the groups of experts a file has only how many count, so that there may be no more than one."""
    _refuse(fields, "expert_group_used_count", int, 1)
    _refuse(fields, "expert_gating_func", int, SIGMOID)
    heads, rotated = _per_layer(fields, "attention.head_count_kv", hf["num_hidden_layers"]), fields.integer(ROTATED)
    hf |= {
        "linear_attn_config": {
            "num_heads": hf["num_attention_heads"],
            "head_dim": fields.integer("kda.head_dim"),
            "short_conv_kernel_size": fields.integer("ssm.conv_kernel"),
            "full_attn_layers": [i + 1 for i, count in enumerate(heads) if count],
        },
        "q_lora_rank": fields.optional("attention.q_lora_rank", int),
        "kv_lora_rank": fields.integer("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": fields.integer("attention.key_length_mla") - rotated,
        "v_head_dim": fields.integer("attention.value_length_mla"),
        "num_experts": fields.integer("expert_count"),
        "num_experts_per_token": fields.integer("expert_used_count"),
        "moe_intermediate_size": fields.integer("expert_feed_forward_length"),
        "num_shared_experts": fields.integer("expert_shared_count"),
        "first_k_dense_replace": fields.optional("leading_dense_block_count", int) or 0,
        "routed_scaling_factor": fields.optional("expert_weights_scale", float) or 1.0,
    }


HYBRID_FIXES: dict[str, Callable[[dict[str, Any], Fields], None]] = {
    "mamba2": _mamba2,
    "granitehybrid": _bamba,
    "falcon-h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h,
    "qwen3next": _qwen3_next,
    "qwen35": _qwen3_5,
    "qwen35moe": _qwen3_5,
    "kimi-linear": _kimi_linear,
}
