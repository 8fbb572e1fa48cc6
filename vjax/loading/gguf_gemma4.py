"""What Gemma 4 adds to a config translated from GGUF: its layers are of two kinds, with sizes of their own."""

from __future__ import annotations

from typing import Any

from vjax.errors import CheckpointError, ModelError
from vjax.loading.gguf_fields import Fields
from vjax.loading.gguf_fixes import layer_types

LOCAL, FULL = "sliding_attention", "full_attention"
STILL = 1e29  # divisors of rope frequencies from here on leave their channels as they are


def gemma4(hf: dict[str, Any], fields: Fields) -> None:
    """`head_dim` as translated is that of full layers."""
    kinds, full_width = _kinds(hf, fields), hf["head_dim"]
    shared = fields.optional("attention.shared_kv_layers", int) or 0
    heads = _by_kind(fields, "attention.head_count_kv", kinds)
    own = {"num_key_value_heads": heads[FULL], "head_dim": full_width}
    names = fields.gguf.names()
    hf |= {
        "layer_types": kinds,
        "num_kv_shared_layers": shared,
        "num_key_value_heads": heads.get(LOCAL, heads[FULL]),
        "head_dim": fields.integer("attention.key_length_swa"),
        "global_head_dim": full_width,
        "per_layer_config": {str(i): own for i, kind in enumerate(kinds) if kind == FULL},
        "attention_k_eq_v": f"blk.{kinds.index(FULL)}.attn_v.weight" not in names,
        "use_double_wide_mlp": _wide(hf, fields, shared),
        "hidden_size_per_layer_input": fields.optional("embedding_length_per_layer_input", int) or 0,
        "final_logit_softcapping": fields.optional("final_logit_softcapping", float) or None,
    }
    hf["rope_parameters"] = _ropes(hf, fields)
    if "per_layer_token_embd.weight" in names:
        hf["vocab_size_per_layer_input"] = names["per_layer_token_embd.weight"].shape[0]
    if fields.optional("expert_count", int):
        hf |= {
            "enable_moe_block": True,
            "num_experts": fields.integer("expert_count"),
            "top_k_experts": fields.integer("expert_used_count"),
            "moe_intermediate_size": fields.integer("expert_feed_forward_length"),
        }


def _kinds(hf: dict[str, Any], fields: Fields) -> list[str]:
    fields.integer("attention.sliding_window")
    key = f"{fields.architecture}.attention.sliding_window_pattern"
    if key not in fields.gguf.metadata:
        raise fields.fail(key, "is missing")
    kinds = layer_types(hf, fields, 0)
    if kinds[-1] != FULL:
        raise fields.fail(key, "gives the last layer a window, which this family does not")
    return kinds


def _by_kind(fields: Fields, name: str, kinds: list[str]) -> dict[str, int]:
    """A size that layers of one kind have in common."""
    key = f"{fields.architecture}.{name}"
    found = fields.gguf.metadata.get(key)
    values = found if isinstance(found, list) else [fields.integer(name)] * len(kinds)
    pairs = dict(zip(kinds, values, strict=False))
    if len(values) != len(kinds) or any(pairs[kind] != value for kind, value in zip(kinds, values, strict=True)):
        raise fields.fail(key, "must say the same of all layers of a kind")
    return pairs


def _wide(hf: dict[str, Any], fields: Fields, shared: int) -> bool:
    """Whether MLPs of layers without keys of their own are twice as wide."""
    name, layers, width = "feed_forward_length", hf["num_hidden_layers"], hf["intermediate_size"]
    widths = fields.gguf.metadata.get(f"{fields.architecture}.{name}")
    if not isinstance(widths, list) or widths == [width] * layers:
        return False
    own = max(layers - shared, 0)
    if widths != [width] * own + [2 * width] * (layers - own):
        raise fields.fail(f"{fields.architecture}.{name}", "is neither of one width nor twice it in the last layers")
    return True


def _ropes(hf: dict[str, Any], fields: Fields) -> dict[str, Any]:
    """Of full layers the first channels turn: those that `rope_freqs` divides by one."""
    turned = fields.optional("rope.dimension_count_swa", int) or hf["head_dim"]
    if "rope_scaling" in hf or "partial_rotary_factor" in hf or turned != hf["head_dim"]:
        raise ModelError(f"{fields.gguf.path}: a scaled rope or a part of a head's is not supported for gemma4.")
    base = fields.optional("rope.freq_base_swa", float)
    if base is None:
        raise fields.fail(f"{fields.architecture}.rope.freq_base_swa", "is missing")
    divisors = hf.pop("rope_freq_factors", None)
    if divisors is None:
        raise CheckpointError(f"{fields.gguf.path}: tensor 'rope_freqs.weight' is missing.")
    turning = sum(value == 1.0 for value in divisors)
    if divisors[:turning] != [1.0] * turning or any(value < STILL for value in divisors[turning:]):
        raise CheckpointError(
            f"{fields.gguf.path}: tensor 'rope_freqs.weight' must hold ones, and 1e30 for channels that do not turn."
        )
    # Half a channel more, so that rounding loses none.
    part = min((2 * turning + 1) / hf["global_head_dim"], 1.0)
    full = {"rope_type": "proportional", "rope_theta": hf["rope_theta"], "partial_rotary_factor": part}
    return {FULL: full, LOCAL: {"rope_type": "default", "rope_theta": base}}
