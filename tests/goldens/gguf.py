"""The cases as GGUF files, as llama.cpp's converter lays them out: its names, metadata, row order and norms."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    ExpertGatingFuncType,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    RopeScalingType,
    TokenType,
    get_tensor_name_map,
)
from gguf.quants import dequantize, quant_shape_to_byte_shape, quantize

from tests.goldens import Golden, load_case
from tests.goldens.cases import CASES
from tests.goldens.weights import Tensors

ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "gemma3_text": MODEL_ARCH.GEMMA3,
    "phi": MODEL_ARCH.PHI2,
    "phi3": MODEL_ARCH.PHI3,
    "starcoder2": MODEL_ARCH.STARCODER2,
    "stablelm": MODEL_ARCH.STABLELM,
    "cohere": MODEL_ARCH.COMMAND_R,
    "cohere2": MODEL_ARCH.COHERE2,
    "lfm2": MODEL_ARCH.LFM2,
    "deepseek_v2": MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": MODEL_ARCH.DEEPSEEK2,
    "glm4_moe_lite": MODEL_ARCH.DEEPSEEK2,
}
NAMES = {family: MODEL_ARCH_NAMES[architecture] for family, architecture in ARCHITECTURES.items()}
ROTARY = {"phi": 0.5, "phi3": 1.0, "stablelm": 0.25, "cohere2": 1.0}  # share of a head that turns, by default
QUANTISATIONS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
SPM_SIZE = 260  # from here on a vocabulary has room for all bytes, and is SentencePiece-like
PRE_TOKENIZERS = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2", "gemma3_text": "default"}
PRE_TOKENIZERS |= {"phi": "phi-2", "phi3": "gpt-4o", "starcoder2": "starcoder", "stablelm": "stablelm2"}
PRE_TOKENIZERS |= {"cohere": "command-r", "cohere2": "command-r", "lfm2": "lfm2"}
PRE_TOKENIZERS |= {"deepseek_v2": "deepseek-llm", "deepseek_v3": "deepseek-v3", "glm4_moe_lite": "glm4"}
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"


def gguf_case_names(*families: str) -> list[str]:
    """The names of the cases that a GGUF file can express."""
    return [case.name for case in CASES if case.gguf and (not families or case.family in families)]


def gguf_checkpoint(name: str, directory: Path, quantise: str = "F32", splits: int = 1) -> Path:
    """Write the case as one GGUF file below `directory`, or as `splits` files; returns the first, reuses existing ones.

    `quantise`: the type of all matrices, one of `QUANTISATIONS`.
    """
    golden = load_case(name)
    if not golden.case.gguf:
        raise ValueError(f"case {name!r} has no GGUF form.")
    tensors = converted(golden)
    path = directory / f"{name}-{quantise}.gguf"
    first = path if splits == 1 else path.with_name(f"{path.stem}-00001-of-{splits:05d}.gguf")
    if not first.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_gguf(path, golden, tensors, quantise, splits)
    return first


def write_gguf(path: Path, golden: Golden, tensors: Tensors, quantise: str, splits: int) -> None:
    config, family = golden.config, golden.case.family
    per_file = math.ceil(len(tensors) / splits) if splits > 1 else 0
    writer = GGUFWriter(path, NAMES[family], split_max_tensors=per_file)
    writer.add_name(golden.name)
    writer.add_file_type(LlamaFileType.ALL_F32 if quantise == "F32" else LlamaFileType[f"MOSTLY_{quantise}"])
    add_shape(writer, config, family)
    add_rope(writer, config)
    add_vocabulary(writer, config, family)
    for name, array in tensors.items():
        data, kind = stored(array, quantise)
        writer.add_tensor(name, data, raw_dtype=kind)
    assert len(writer.tensors) == splits, f"{len(tensors)} tensors do not make {splits} files"
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def dequantised(golden: Golden, quantise: str) -> Tensors:
    """The weights by Hugging Face name and in its layout, float32, as a file of this quantisation holds them."""

    def through(array: np.ndarray) -> np.ndarray:
        data, kind = stored(array, quantise)
        return dequantize(data, kind).reshape(array.shape)

    # Quantisation works within rows, so the converter's order of rows makes no difference.
    return {name: through(array) for name, array in golden.tensors().items()}


def stored(array: np.ndarray, quantise: str) -> tuple[np.ndarray, GGMLQuantizationType]:
    """The bytes and the type a tensor gets: vectors stay float32; rows that do not divide into blocks become F16."""
    kind = GGMLQuantizationType.F32 if array.ndim == 1 else GGMLQuantizationType[quantise]
    try:
        quant_shape_to_byte_shape(array.shape, kind)
    except ValueError:
        kind = GGMLQuantizationType.F16
    return quantize(np.ascontiguousarray(array), kind), kind


def converted(golden: Golden) -> Tensors:
    """The tensors by GGUF name, in the converter's layout."""
    config, family = golden.config, golden.case.family
    names = get_tensor_name_map(ARCHITECTURES[family], config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config.get("num_key_value_heads")}
    tensors = {}
    for name, array in stack_experts(split_up_projections(stack_head_norms(golden.tensors()), config)).items():
        module = name.split(".")[-2]
        if family == "llama" and module in heads:
            array = interleave_halves(array, heads[module])
        if family == "gemma3_text" and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if name.endswith("conv.conv.weight"):
            array = array[:, 0]
        gguf_name = names.get_name(
            name.replace("correction_bias", "correction.bias"), try_suffixes=(".weight", ".bias")
        )
        assert gguf_name, f"llama.cpp has no name for {name!r}"
        tensors[gguf_name] = array
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    for length in ("short", "long"):
        if f"{length}_factor" in rope:
            tensors[f"rope_factors_{length}.weight"] = np.asarray(rope[f"{length}_factor"], np.float32)
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = llama3_divisors(rope, head_dim(config), rope_theta(config))
    return tensors


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
    kept = {name: array for name, array in tensors.items() if ".experts." not in name}
    return {**kept, **{name: np.stack([arrays[e] for e in sorted(arrays)]) for name, arrays in stacked.items()}}


def split_up_projections(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """Latent attention: `kv_b_proj` as keys' `[H, R, N]` and values' `[H, V, R]`."""
    found = {}
    for name, array in tensors.items():
        if not name.endswith("kv_b_proj.weight"):
            found[name] = array
            continue
        by_head = array.reshape(config["num_attention_heads"], -1, array.shape[-1])
        keys, values = np.split(by_head, [config["qk_nope_head_dim"]], axis=1)
        found[name.replace("kv_b_proj", "k_b_proj")] = keys.swapaxes(1, 2)
        found[name.replace("kv_b_proj", "v_b_proj")] = values
    return found


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


def head_dim(config: dict[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def rope_theta(config: dict[str, Any]) -> float | None:
    return config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta")


def add_shape(writer: GGUFWriter, config: dict[str, Any], family: str) -> None:
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    latents = "kv_lora_rank" in config
    kv_heads = 1 if latents else config.get("num_key_value_heads") or config["num_attention_heads"]
    if family == "lfm2":
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        kv_heads = [kv_heads if kind == "full_attention" else 0 for kind in config["layer_types"]]
    writer.add_head_count_kv(kv_heads)
    if latents:
        add_latents(writer, config, family)
    if "rms_norm_eps" in config or family == "lfm2":
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config["norm_eps"])
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["norm_epsilon"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if family == "llama":
        writer.add_rope_dimension_count(head_dim(config))
    if family in ROTARY:
        writer.add_rope_dimension_count(int(config.get("partial_rotary_factor", ROTARY[family]) * head_dim(config)))
    if family in ("gemma3_text", "phi3", "cohere2"):
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if family in ("cohere", "cohere2"):
        writer.add_logit_scale(config["logit_scale"])
        writer.add_rope_scaling_type(RopeScalingType.NONE)
    if family == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    if family == "stablelm":
        writer.add_parallel_residual(config.get("use_parallel_residual", False))


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
    softmax = family == "deepseek_v2"
    writer.add_expert_gating_func(ExpertGatingFuncType.SOFTMAX if softmax else ExpertGatingFuncType.SIGMOID)
    if multiplier := (config.get("rope_scaling") or {}).get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * multiplier)


def add_rope(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """Llama 3's scaling is not here: it becomes a tensor of divisors."""
    if rope_theta(config):
        writer.add_rope_freq_base(rope_theta(config))
    rope = config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "longrope":
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


def add_vocabulary(writer: GGUFWriter, config: dict[str, Any], family: str) -> None:
    size = config["vocab_size"]
    sentencepiece = size >= SPM_SIZE
    tokens, types = spm_tokens(size) if sentencepiece else bpe_tokens(size)
    writer.add_tokenizer_model("llama" if sentencepiece else "gpt2")
    writer.add_tokenizer_pre("default" if sentencepiece else PRE_TOKENIZERS[family])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if sentencepiece:
        writer.add_token_scores([-float(i) for i in range(size)])
        writer.add_add_space_prefix(family != "gemma3_text")
    else:
        writer.add_token_merges([f"{token[0]} {token[1]}" for token in tokens[len(SPECIAL) :] if len(token) == 2])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(sentencepiece)
    writer.add_chat_template(CHAT_TEMPLATE)


SPECIAL = ["<unk>", "<s>", "</s>"]
SPECIAL_TYPES = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
FREQUENT = "etaoinshrdlu"


def bpe_tokens(size: int) -> tuple[list[str], list[TokenType]]:
    """Byte-level BPE: printable ASCII, space and newline as GPT-2 writes bytes, then pairs of frequent letters."""
    tokens = [*SPECIAL, "\u010a", "\u0120", *map(chr, range(33, 127))]
    tokens += itertools.islice(map("".join, itertools.product(FREQUENT, repeat=2)), size - len(tokens))
    assert len(tokens) == size, f"a vocabulary of {size} is out of reach"
    return tokens, [*SPECIAL_TYPES, *[TokenType.NORMAL] * (size - len(SPECIAL))]


def spm_tokens(size: int) -> tuple[list[str], list[TokenType]]:
    """SentencePiece-like: every byte, the space, then frequent letters alone and after a space."""
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    pieces = [*FREQUENT, *("\u2581" + letter for letter in FREQUENT)]
    tokens += pieces[: size - len(tokens)]
    assert len(tokens) == size, f"a vocabulary of {size} is out of reach"
    types = [*SPECIAL_TYPES, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * (size - len(SPECIAL) - 256)]
    return tokens, types
