"""What architectures with latent attention add to a config translated from GGUF, and DeepSeek's mixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vjax.loading.gguf_fields import Fields

SOFTMAX = 1  # of `expert_gating_func`
# Groups of experts and how many count, by whether routers score by sigmoid and the number of experts: what DeepSeek-V3
# and V2 have, in files from before September 2025 that do not say.
GROUPS = {(True, 256): (8, 4), (False, 160): (8, 3)}
# Since GLM-5.2 some layers take over the choice of the layer before; the converter's first files do not say which.
GLM_5_2_CONTEXT = 1 << 20
GLM_5_2_INDEXERS = {"index_topk_freq": 4, "index_skip_topk_offset": 3}


def _deepseek2(hf: dict[str, Any], fields: Fields) -> None:
    """DeepSeek-V2, V3 and what shares their form: told apart by how routers score."""
    if fields.optional("expert_gating_func", int) in (None, SOFTMAX):
        hf |= {"model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"]}
    sigmoid = hf["model_type"] == "deepseek_v3"
    _deepseek(hf, fields, sigmoid)
    if not sigmoid:
        del hf["norm_topk_prob"]
        hf["topk_method"] = "group_limited_greedy" if hf["n_group"] > 1 else "greedy"


def _deepseek(hf: dict[str, Any], fields: Fields, sigmoid: bool) -> None:
    """Layers that predict further tokens count as blocks there."""
    # Since April 2025 the two lengths are those of the latents, as the cache holds them.
    width = fields.optional("attention.key_length_mla", int) or fields.integer("attention.key_length")
    value = fields.optional("attention.value_length_mla", int) or fields.integer("attention.value_length")
    hf |= mixture(fields, sigmoid)
    hf |= _latents(fields, width, value)
    hf["num_hidden_layers"] -= fields.optional("nextn_predict_layers", int) or 0
    # llama.cpp scales all channels alike, which is what published configs say with two equal numbers.
    multiplier = fields.optional("rope.scaling.yarn_log_multiplier", float)
    if multiplier and "rope_scaling" in hf:
        hf["rope_scaling"] |= {"mscale": multiplier * 10, "mscale_all_dim": multiplier * 10}


def _latents(fields: Fields, width: int, value: int) -> dict[str, Any]:
    rotated = fields.integer("rope.dimension_count")
    return {
        "q_lora_rank": fields.optional("attention.q_lora_rank", int),
        "kv_lora_rank": fields.integer("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": width - rotated,
        "v_head_dim": value,
    }


def mixture(fields: Fields, sigmoid: bool) -> dict[str, Any]:
    """A mixture of experts as DeepSeek's configs describe it."""
    experts = fields.integer("expert_count")
    guess = GROUPS.get((sigmoid, experts)) if fields.architecture == "deepseek2" else None
    groups, used = guess or (1, 1)
    return {
        "n_routed_experts": experts,
        "n_shared_experts": fields.optional("expert_shared_count", int),
        "num_experts_per_tok": fields.integer("expert_used_count"),
        "moe_intermediate_size": fields.integer("expert_feed_forward_length"),
        "first_k_dense_replace": fields.optional("leading_dense_block_count", int) or 0,
        "routed_scaling_factor": fields.optional("expert_weights_scale", float) or 1.0,
        "n_group": fields.optional("expert_group_count", int) or groups,
        "topk_group": fields.optional("expert_group_used_count", int) or used,
        "norm_topk_prob": bool(fields.optional("expert_weights_norm", bool)),
    }


def _minicpm3(hf: dict[str, Any], fields: Fields) -> None:
    """llama.cpp's own constants scale embedding, residuals and logits: the family's defaults."""
    value = fields.optional("attention.value_length", int) or hf["hidden_size"] // hf["num_attention_heads"]
    hf |= _latents(fields, fields.integer("attention.key_length"), value)


def _glm_dsa(hf: dict[str, Any], fields: Fields) -> None:
    _deepseek(hf, fields, sigmoid=True)
    if fields.optional("expert_gating_func", int) == SOFTMAX:
        raise fields.fail("glm-dsa.expert_gating_func", "is softmax, but this architecture routes by sigmoid")
    names = {"index_n_heads": "head_count", "index_head_dim": "key_length", "index_topk": "top_k"}
    hf |= {name: fields.integer(f"attention.indexer.{key}") for name, key in names.items()}
    key = "glm-dsa.attention.indexer.types"
    types = fields.gguf.metadata.get(key)
    if types is None:
        new = hf["max_position_embeddings"] >= GLM_5_2_CONTEXT
        hf |= GLM_5_2_INDEXERS if new else {"index_topk_freq": 1}
    elif isinstance(types, list) and len(types) >= hf["num_hidden_layers"]:
        hf["indexer_types"] = ["full" if full else "shared" for full in types[: hf["num_hidden_layers"]]]
    else:
        raise fields.fail(key, f"must be a list with a value for each of {hf['num_hidden_layers']} layers")


LATENT_FIXES: dict[str, Callable[[dict[str, Any], Fields], None]] = {
    "deepseek2": _deepseek2,
    "minicpm3": _minicpm3,
    "glm-dsa": _glm_dsa,
}
