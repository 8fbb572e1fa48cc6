"""The tensors as llama.cpp's converter lays them out: its names, row order and norms, and what it splits or stacks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from gguf import get_tensor_name_map

from tests.goldens import Golden
from tests.goldens.gguf_families import GEMMAS, PAIRED, architecture
from tests.goldens.gguf_gemma4 import full_divisors, gemma4_name
from tests.goldens.gguf_hybrids import HYBRIDS, hybrid_name, hybrid_tensor, split_qkvz
from tests.goldens.gguf_metadata import head_dim, rope_parameters, rope_theta, spelled_out
from tests.goldens.weights import Tensors


def converted(golden: Golden) -> Tensors:
    """The tensors by GGUF name, in the converter's layout."""
    config, family = spelled_out(golden.config), golden.case.family
    names = get_tensor_name_map(architecture(golden.case), config["num_hidden_layers"])
    heads = {"q_proj": config.get("num_attention_heads"), "k_proj": config.get("num_key_value_heads")}
    tensors = {}
    for name, array in stack_experts(taken_apart(stack_head_norms(golden.tensors()), config)).items():
        module = name.split(".")[-2]
        if family in PAIRED and module in heads:
            array = interleave_halves(array, heads[module])
        if family in GEMMAS and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if name.endswith("conv.conv.weight"):
            array = array[:, 0]
        if family in HYBRIDS:
            array = hybrid_tensor(name, array, config, family)
        known = name.replace("correction_bias", "correction.bias").replace("expert_bias", "expert_bias.bias")
        for ours, theirs in RENAMED.items():
            known = known.replace(ours, theirs)
        known = gemma4_name(known) if family == "gemma4_text" else hybrid_name(known)
        gguf_name = known if known.startswith("blk.") else names.get_name(known, try_suffixes=(".weight", ".bias"))
        if name == "lm_head.weight":
            gguf_name = "output.weight"  # also where every published model is tied
        assert gguf_name, f"llama.cpp has no name for {name!r}"
        tensors[gguf_name] = array
    if family == "minicpm3":
        tensors = in_other_constants(tensors, config)
    rope = rope_parameters(config)
    for length in ("short", "long"):
        if f"{length}_factor" in rope:
            tensors[f"rope_factors_{length}.weight"] = np.asarray(rope[f"{length}_factor"], np.float32)
    if rope.get("rope_type") == "proportional":
        tensors["rope_freqs.weight"] = full_divisors(config)
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = llama3_divisors(rope, head_dim(config), rope_theta(config))
    return tensors


# What the converter's table has under other names.
RENAMED = {f"block_sparse_moe.experts.{name}_proj": f"mlp.experts.{name}_proj" for name in ("gate", "up")}
RENAMED |= {
    f"feed_forward.experts.w{i}": f"mlp.experts.{name}_proj" for i, name in ((1, "gate"), (3, "up"), (2, "down"))
}
RENAMED |= {f"shared_mlp.{name}_proj": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up")}

RENAMED |= {".linear.": ".", "self_attn.query_key_value": "self_attn.qkv_proj"}


def in_other_constants(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """llama.cpp multiplies MiniCPM3's embedding by 12, halves of blocks by 1.4 over the root of their number and the
    last stream by 256 over its width, whatever the config says: the same model in those constants."""
    assert config["scale_depth"] == 1.4
    embed = config["scale_emb"] / 12
    logits = config["dim_model_base"] / 256 / (embed if config["tie_word_embeddings"] else 1)
    changed = {"token_embd.weight": embed, "output_norm.weight": logits}
    return {**tensors, **{name: tensors[name] * np.float32(factor) for name, factor in changed.items()}}


def stack_head_norms(tensors: Tensors) -> Tensors:
    """StableLM's norms of each head, `[D]`, become one tensor `[heads, D]`."""
    stacked: dict[str, list[np.ndarray]] = {}
    for name in sorted(tensors, key=lambda name: [int(part) if part.isdigit() else 0 for part in name.split(".")]):
        if ".norms." in name:
            stacked.setdefault(re.sub(r"\.norms\.\d+", "", name), []).append(tensors[name])
    kept = {name: array for name, array in tensors.items() if ".norms." not in name}
    return {**kept, **{name: np.stack(arrays) for name, arrays in stacked.items()}}


def stack_experts(tensors: Tensors) -> Tensors:
    """What every expert has of its own, in one tensor `[E, out, in]`."""
    stacked: dict[str, dict[int, np.ndarray]] = {}
    for name, array in tensors.items():
        if expert := re.search(r"\.experts\.(\d+)", name):
            stacked.setdefault(name.replace(expert[0], ".experts"), {})[int(expert[1])] = array
    kept = {name: array for name, array in tensors.items() if not re.search(r"\.experts\.\d", name)}
    return {**kept, **{name: np.stack([arrays[e] for e in sorted(arrays)]) for name, arrays in stacked.items()}}


def taken_apart(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """What a file holds as several tensors, or with other axes, under names as Hugging Face would have them."""
    found: Tensors = {}
    if config["model_type"] == "gpt2":
        tensors = as_linear(tensors)
    if config["model_type"] == "glm":
        tensors = as_chatglm(tensors)
    for name, array in tensors.items():
        for suffix, split in SPLITS.items():
            if name.endswith(suffix):
                found |= {name.removesuffix(suffix) + part: each for part, each in split(array, config).items()}
                break
        else:
            found[name] = array
    return found


def as_linear(tensors: Tensors) -> Tensors:
    """GPT-2's weights `[out, in]`."""
    found = {}
    for name, array in tensors.items():
        module, _, kind = name.rpartition(".")
        linear = module.endswith(("c_attn", "c_proj", "c_fc"))
        found[f"{module}.linear.{kind}" if linear else name] = array.T if linear and kind == "weight" else array
    return found


def as_chatglm(tensors: Tensors) -> Tensors:
    """Queries, keys and values together, as GLM-4's first checkpoints had them and not `transformers`'."""
    parts, found = ("q_proj", "k_proj", "v_proj"), {}
    for name, array in tensors.items():
        if ".q_proj." in name:
            together = np.concatenate([tensors[name.replace("q_proj", part)] for part in parts])
            found[name.replace("q_proj", "query_key_value")] = together
        elif not any(part in name for part in parts):
            found[name] = array
    return found


def split_latents(array: np.ndarray, config: dict[str, Any]) -> Tensors:
    """Latent attention: keys' `[H, R, N]` and values' `[H, V, R]`; of MiniCPM3 they stay together."""
    if config["model_type"] == "minicpm3":
        return {"kv_b_proj.weight": array}
    by_head = array.reshape(config["num_attention_heads"], -1, array.shape[-1])
    keys, values = np.split(by_head, [config["qk_nope_head_dim"]], axis=1)
    return {"k_b_proj.weight": keys.swapaxes(1, 2), "v_b_proj.weight": values}


def split_qkv(array: np.ndarray, config: dict[str, Any]) -> Tensors:
    """InternLM 2's, by key/value head."""
    heads = array.reshape(config["num_key_value_heads"], -1, head_dim(config), array.shape[-1])
    parts = {"q_proj": heads[:, :-2], "k_proj": heads[:, -2], "v_proj": heads[:, -1]}
    return {f"self_attn.{name}.weight": part.reshape(-1, array.shape[-1]) for name, part in parts.items()}


def split_halves(array: np.ndarray, config: dict[str, Any]) -> Tensors:
    """Granite's gates, then values."""
    gate, up = np.split(array, 2, axis=-2)
    return {"gate_proj.weight": gate, "up_proj.weight": up}


SPLITS: dict[str, Callable[[np.ndarray, dict[str, Any]], Tensors]] = {
    "kv_b_proj.weight": split_latents,
    "attention.wqkv.weight": split_qkv,
    "in_proj_qkvz.weight": split_qkvz,
    "block_sparse_moe.input_linear.weight": lambda array, config: {
        f"block_sparse_moe.experts.{name}": part for name, part in split_halves(array, config).items()
    },
    "shared_mlp.input_linear.weight": lambda array, config: {
        f"shared_mlp.{name}": part for name, part in split_halves(array, config).items()
    },
    # GPT-OSS: rows or columns in turn are a gate's and a value's.
    "mlp.experts.gate_up_proj": lambda array, config: {
        f"mlp.experts.{name}_proj.weight": array[..., i::2].swapaxes(1, 2) for i, name in enumerate(("gate", "up"))
    },
    "mlp.experts.gate_up_proj_bias": lambda array, config: {
        f"mlp.experts.{name}_proj.bias": array[:, i::2] for i, name in enumerate(("gate", "up"))
    },
    "mlp.experts.down_proj": lambda array, config: {"mlp.experts.down_proj.weight": array.swapaxes(1, 2)},
    "mlp.experts.down_proj_bias": lambda array, config: {"mlp.experts.down_proj.bias": array},
    # Gemma 4: as they are, with a kind.
    "experts.gate_up_proj": lambda array, config: {"experts.gate_up_proj.weight": array},
    "experts.down_proj": lambda array, config: {"experts.down_proj.weight": array},
    "self_attn.sinks": lambda array, config: {"self_attn.sinks.weight": array},
}


def interleave_halves(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head reordered from (first half, second half) to pairs: llama.cpp rotates neighbours."""
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def llama3_divisors(rope: dict[str, Any], dim: int, theta: float) -> np.ndarray:
    """What Llama 3.1's scaling divides each rope frequency by, `[dim / 2]` float32."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, dim, 2) / dim)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    smooth = (rope["original_max_position_embeddings"] / wavelengths - low) / (high - low)
    smooth = np.clip(smooth, 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)
