"""What llama.cpp's converter does with recurrent models and hybrids; `gguf.py` writes the files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, ExpertGatingFuncType, GGUFWriter

from tests.goldens import Golden
from tests.goldens.cases import Case
from tests.goldens.weights import Tensors

Config = dict[str, Any]

HYBRIDS = {
    "mamba2": MODEL_ARCH.MAMBA2,
    "bamba": MODEL_ARCH.GRANITE_HYBRID,
    "falcon_h1": MODEL_ARCH.FALCON_H1,
    "nemotron_h": MODEL_ARCH.NEMOTRON_H,
    "qwen3_next": MODEL_ARCH.QWEN3NEXT,
    "qwen3_5": MODEL_ARCH.QWEN35,
    "qwen3_5_moe_text": MODEL_ARCH.QWEN35MOE,
    "kimi_linear": MODEL_ARCH.KIMI_LINEAR,
}
HYBRID_PRE_TOKENIZERS = {
    "mamba2": "olmo",
    "bamba": "llama-bpe",
    "falcon_h1": "falcon-h1",
    "nemotron_h": "pixtral",
    "qwen3_next": "qwen2",
    "qwen3_5": "qwen35",
    "qwen3_5_moe_text": "qwen35",
    "kimi_linear": "kimi-k2",
}
GROUPED_NORMS = ("mamba2", "bamba", "falcon_h1", "nemotron_h")  # those of Mamba-2 layers
QWENS = ("qwen3_next", "qwen3_5", "qwen3_5_moe_text")
LISTED = ("bamba", "nemotron_h", "kimi_linear")  # whose counts of key/value heads are lists
LONGEST = 1 << 20  # which the converter states for models that state no longest context


def hybrid_architecture(case: Case) -> MODEL_ARCH | None:
    """Nemotron-H has two."""
    if case.family == "nemotron_h" and "num_experts_per_tok" in case.config:
        return MODEL_ARCH.NEMOTRON_H_MOE
    return HYBRIDS.get(case.family)


class TextGolden(Golden):
    """Of a golden with a vision tower the text model, which is what the converter writes."""

    @property
    def config(self) -> Config:
        return {**self.case.config, **self.case.config["text_config"]}

    def tensors(self) -> Tensors:
        tensors = super().tensors().items()
        return {name.replace("language_model.", ""): array for name, array in tensors if ".visual." not in name}


def text_of(golden: Golden) -> Golden:
    return TextGolden(**vars(golden)) if "text_config" in golden.case.config else golden


def hybrid_name(name: str) -> str:
    """As the converter has it before it looks a name up."""
    name = name.replace(".dt_bias", ".dt_proj.bias")
    return name.replace("backbone", "model").replace("mixer", "mlp") if ".mixer.experts." in name else name


def hybrid_tensor(name: str, array: np.ndarray, config: Config, family: str) -> np.ndarray:
    """A tensor as the converter stores it."""
    kind = name.rpartition(".")[2]
    if kind == "A_log":
        array = -np.exp(array)
    if family in GROUPED_NORMS:
        groups = config.get("n_groups") or config.get("mamba_n_groups")
        array = {"A_log": array[..., None], "D": array[..., None]}.get(kind, array)
        array = array.reshape(groups, -1) if name.endswith(("mixer.norm.weight", "mamba.norm.weight")) else array
    if "conv1d.weight" in name:
        array = array.reshape(1, -1, 1, array.shape[-1]) if family == "kimi_linear" else array.squeeze()
    return HYBRID_CHANGES.get(family, lambda name, array, config: array)(name, array, config)


def falcon_h1(name: str, array: np.ndarray, config: Config) -> np.ndarray:
    """Multipliers are multiplied in."""
    attention_in, (gate, down) = config["attention_in_multiplier"], config["mlp_multipliers"]
    factors = {
        "down_proj": down,
        "gate_proj": gate,
        "k_proj": config["key_multiplier"] * attention_in,
        "q_proj": attention_in,
        "v_proj": attention_in,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "in_proj": config["ssm_in_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    module = name.split(".")[-2]
    array = array * np.float32(factors.get(module, 1.0))
    if module == "in_proj":
        inner, shared = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        rows = (inner, inner, shared, shared, config["mamba_n_heads"])
        array = array * np.repeat(np.asarray(config["ssm_multipliers"], np.float32), rows)[:, None]
    return array


def qwen(name: str, array: np.ndarray, config: Config) -> np.ndarray:
    """Norms have their 1 added, but for the gated one."""
    plain = name.endswith("linear_attn.norm.weight") or not name.endswith("norm.weight")
    return array if plain else array + np.float32(1)


def qwen3_5(name: str, array: np.ndarray, config: Config) -> np.ndarray:
    """Besides, value heads go in turn through those of all keys."""
    array, width = qwen(name, array, config), config["linear_value_head_dim"]
    queries_and_keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    module = name.split(".linear_attn.")[-1]
    if module in ("in_proj_qkv.weight", "conv1d.weight"):
        values = in_turn(array[queries_and_keys:], config, width)
        return np.concatenate([array[:queries_and_keys], values])
    if module == "in_proj_z.weight":
        return in_turn(array, config, width)
    if module in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        return in_turn(array, config, 1)
    return in_turn(array.T, config, width).T if module == "out_proj.weight" else array


def in_turn(rows: np.ndarray, config: Config, width: int) -> np.ndarray:
    """Rows by value head, those of a key head together, to the first of every key head, then the second of each."""
    key_heads = config["linear_num_key_heads"]
    by_head = rows.reshape(key_heads, -1, width, *rows.shape[1:])
    return by_head.swapaxes(0, 1).reshape(rows.shape)


HYBRID_CHANGES: dict[str, Callable[[str, np.ndarray, Config], np.ndarray]] = {
    "falcon_h1": falcon_h1,
    "qwen3_next": qwen,
    "qwen3_5": qwen3_5,
    "qwen3_5_moe_text": qwen3_5,
}


def split_qkvz(array: np.ndarray, config: Config) -> Tensors:
    """Qwen3-Next's, by key head: queries, keys and values of all heads, and what gates the values."""
    key, values = config["linear_key_head_dim"], config["linear_value_head_dim"]
    heads, width = config["linear_num_key_heads"], array.shape[-1]
    values *= config["linear_num_value_heads"] // heads
    q, k, v, z = np.split(array.reshape(heads, -1, width), [key, 2 * key, 2 * key + values], axis=1)
    qkv = np.concatenate([part.reshape(-1, width) for part in (q, k, v)])
    return {"in_proj_qkv.weight": qkv, "in_proj_z.weight": z.reshape(-1, width)}


def add_hybrid(writer: GGUFWriter, config: Config, family: str) -> None:
    writer.add_vocab_size(config["vocab_size"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config.get("max_position_embeddings") or config.get("model_max_length") or LONGEST)
    writer.add_head_count(config.get("num_attention_heads", 0))
    if family != "nemotron_h":
        writer.add_feed_forward_length(config.get("intermediate_size", 0))
    if "num_key_value_heads" in config and family not in LISTED:
        writer.add_head_count_kv(config["num_key_value_heads"])
    eps = config.get("rms_norm_eps") or config["layer_norm_epsilon"]  # Nemotron-H's are published under both names
    writer.add_layer_norm_rms_eps(eps)
    if "head_dim" in config and family != "mamba2":
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    HYBRID_SHAPES[family](writer, config)


def add_ssm(writer: GGUFWriter, conv: int, inner: int, state: int, heads: int, groups: int) -> None:
    writer.add_ssm_conv_kernel(conv)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(groups)


def add_mamba2(writer: GGUFWriter, config: Config) -> None:
    heads, width = config["num_heads"], config["head_dim"]
    add_ssm(writer, config["conv_kernel"], heads * width, config["state_size"], heads, config["n_groups"])


def add_bamba(writer: GGUFWriter, config: Config) -> None:
    attending = [config["num_key_value_heads"] * (i in config["attn_layer_indices"]) for i in layers(config)]
    writer.add_head_count_kv(attending)
    # Published configs say `attn_rotary_emb`: half a head, which is what transformers turns in any case.
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"] // 2)
    writer.add_rope_scaling_finetuned(True)
    inner, heads = config["mamba_expand"] * config["hidden_size"], config["mamba_n_heads"]
    add_ssm(writer, config["mamba_d_conv"], inner, config["mamba_d_state"], heads, config["mamba_n_groups"])


def add_falcon_h1(writer: GGUFWriter, config: Config) -> None:
    inner, heads = config["mamba_d_ssm"], config["mamba_n_heads"]
    add_ssm(writer, config["mamba_d_conv"], inner, config["mamba_d_state"], heads, config["mamba_n_groups"])


def add_nemotron_h(writer: GGUFWriter, config: Config) -> None:
    kinds = config.get("layers_block_type") or list(config["hybrid_override_pattern"])
    attending = [config["num_key_value_heads"] * (kind in ("full_attention", "*")) for kind in kinds]
    writer.add_head_count_kv(attending)
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])  # though nothing turns
    sparse = "num_experts_per_tok" in config
    inner = config["moe_intermediate_size"] if sparse else config["intermediate_size"]
    writer.add_feed_forward_length([inner * (kind in ("moe", "E" if sparse else "-")) for kind in kinds])
    heads, width = config["mamba_num_heads"], config["mamba_head_dim"]
    conv = config.get("conv_kernel", 4)
    add_ssm(writer, conv, heads * width, config["ssm_state_size"], heads, config["n_groups"])
    if sparse:
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
        writer.add_expert_count(config["n_routed_experts"])
        writer.add_expert_shared_count(config.get("n_shared_experts", 1))
        writer.add_expert_weights_norm(config.get("norm_topk_prob", True))
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
        writer.add_moe_latent_size(config["moe_latent_size"])


def add_qwen(writer: GGUFWriter, config: Config) -> None:
    heads, width = config["linear_num_value_heads"], config["linear_value_head_dim"]
    conv, groups = config.get("linear_conv_kernel_dim", 4), config["linear_num_key_heads"]
    add_ssm(writer, conv, heads * width, config["linear_key_head_dim"], heads, groups)
    writer.add_full_attention_interval(config.get("full_attention_interval", 4))
    writer.add_rope_dimension_count(int(config["head_dim"] * config.get("partial_rotary_factor", 0.25)))
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def add_qwen3_5(writer: GGUFWriter, config: Config) -> None:
    add_qwen(writer, config)
    sections = (config.get("rope_parameters") or {}).get("mrope_section", [11, 11, 10])
    writer.add_rope_dimension_sections([*sections, 0])


def add_kimi_linear(writer: GGUFWriter, config: Config) -> None:
    delta, rank, rotated = config["linear_attn_config"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer.add_head_count_kv([int(i + 1 in delta["full_attn_layers"]) for i in layers(config)])
    writer.add_ssm_conv_kernel(delta["short_conv_kernel_size"])
    writer.add_kda_head_dim(delta["head_dim"])
    writer.add_kv_lora_rank(rank)
    writer.add_rope_dimension_count(rotated)
    writer.add_key_length(rank + rotated)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotated)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_token"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["num_shared_experts"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    writer.add_expert_group_used_count(config["topk_group"])


def layers(config: Config) -> range:
    return range(config["num_hidden_layers"])


HYBRID_SHAPES: dict[str, Callable[[GGUFWriter, Config], None]] = {
    "mamba2": add_mamba2,
    "bamba": add_bamba,
    "falcon_h1": add_falcon_h1,
    "nemotron_h": add_nemotron_h,
    "qwen3_next": add_qwen,
    "qwen3_5": add_qwen3_5,
    "qwen3_5_moe_text": add_qwen3_5,
    "kimi_linear": add_kimi_linear,
}
