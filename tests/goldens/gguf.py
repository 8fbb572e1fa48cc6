"""The cases as GGUF files, as llama.cpp's converter lays them out: its names, metadata, row order and norms."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
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
from tests.goldens.cases import CASES, Case
from tests.goldens.gguf_hybrids import (
    HYBRID_PRE_TOKENIZERS,
    HYBRIDS,
    add_hybrid,
    hybrid_architecture,
    hybrid_name,
    hybrid_tensor,
    split_qkvz,
    text_of,
)
from tests.goldens.weights import Tensors

ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "gemma": MODEL_ARCH.GEMMA,
    "gemma2": MODEL_ARCH.GEMMA2,
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
    "internlm2": MODEL_ARCH.INTERNLM2,
    "mixtral": MODEL_ARCH.LLAMA,
    "qwen2_moe": MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": MODEL_ARCH.QWEN3MOE,
    "gpt_oss": MODEL_ARCH.GPT_OSS,
    "glm4_moe": MODEL_ARCH.GLM4_MOE,
    "minimax_m2": MODEL_ARCH.MINIMAXM2,
    "granitemoe": MODEL_ARCH.GRANITE_MOE,
    "granitemoeshared": MODEL_ARCH.GRANITE_MOE,
    "ernie4_5_moe": MODEL_ARCH.ERNIE4_5_MOE,
    "olmoe": MODEL_ARCH.OLMOE,
    "granite": MODEL_ARCH.GRANITE,
    "arcee": MODEL_ARCH.ARCEE,
    "smollm3": MODEL_ARCH.SMOLLM3,
    "minicpm": MODEL_ARCH.MINICPM,
    "seed_oss": MODEL_ARCH.SEED_OSS,
    "ernie4_5": MODEL_ARCH.ERNIE4_5,
    "glm4": MODEL_ARCH.GLM4,
    "olmo2": MODEL_ARCH.OLMO2,
    "olmo3": MODEL_ARCH.OLMO2,
    "exaone4": MODEL_ARCH.EXAONE4,
    "hunyuan_v1_dense": MODEL_ARCH.HUNYUAN_DENSE,
    "lfm2_moe": MODEL_ARCH.LFM2MOE,
}
GEMMAS = ("gemma", "gemma2", "gemma3_text")
ROTARY = {
    "glm4": 0.5,
    "glm4_moe": 0.5,
    "phi": 0.5,
    "phi3": 1.0,
    "stablelm": 0.25,
    "cohere2": 1.0,
}  # share of a head that turns, by default
QUANTISATIONS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
SPM_SIZE = 260  # from here on a vocabulary has room for all bytes, and is SentencePiece-like
PRE_TOKENIZERS = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2"}
PRE_TOKENIZERS |= dict.fromkeys(GEMMAS, "default")
PRE_TOKENIZERS |= {"phi": "phi-2", "phi3": "gpt-4o", "starcoder2": "starcoder", "stablelm": "stablelm2"}
PRE_TOKENIZERS |= {"cohere": "command-r", "cohere2": "command-r", "lfm2": "lfm2", "lfm2_moe": "lfm2"}
PRE_TOKENIZERS |= {"deepseek_v2": "deepseek-llm", "deepseek_v3": "deepseek-v3", "glm4_moe_lite": "glm4"}
PRE_TOKENIZERS |= {"internlm2": "default", "mixtral": "default", "qwen2_moe": "qwen2", "qwen3_moe": "qwen2"}
PRE_TOKENIZERS |= {"gpt_oss": "gpt-4o", "glm4_moe": "glm4", "minimax_m2": "minimax-m2", "ernie4_5_moe": "default"}
PRE_TOKENIZERS |= {"granitemoe": "refact", "granitemoeshared": "refact", "olmoe": "olmo"}
PRE_TOKENIZERS |= {"granite": "refact", "arcee": "llama-bpe", "smollm3": "smaug-bpe", "minicpm": "default"}
PRE_TOKENIZERS |= {"seed_oss": "seed-coder", "ernie4_5": "default", "glm4": "glm4"}
PRE_TOKENIZERS |= {"olmo2": "dbrx", "olmo3": "dbrx", "exaone4": "exaone4", "hunyuan_v1_dense": "hunyuan-dense"}
PRE_TOKENIZERS |= HYBRID_PRE_TOKENIZERS
LFM2S = ("lfm2", "lfm2_moe")
GRANITES = ("granite", "granitemoe", "granitemoeshared")
# Those whose rope turns neighbours there, and halves of a head here; Nemotron-H's rows go the same way without a rope.
PAIRED = ("llama", "mixtral", "internlm2", "arcee", "smollm3", "minicpm", "bamba", "nemotron_h", *GRANITES)
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"


def architecture(case: Case) -> MODEL_ARCH:
    return hybrid_architecture(case) or ARCHITECTURES[case.family]


def architecture_name(case: Case) -> str:
    return MODEL_ARCH_NAMES[architecture(case)]


def gguf_case_names(*families: str) -> list[str]:
    """The names of the cases that a GGUF file can express."""
    return [case.name for case in CASES if case.gguf and (not families or case.family in families)]


def gguf_checkpoint(name: str, directory: Path, quantise: str = "F32", splits: int = 1) -> Path:
    """Write the case as one GGUF file below `directory`, or as `splits` files; returns the first, reuses existing ones.

    `quantise`: the type of all matrices, one of `QUANTISATIONS`.
    """
    golden = text_of(load_case(name))
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
    writer = GGUFWriter(path, architecture_name(golden.case), split_max_tensors=per_file)
    writer.add_name(golden.name)
    writer.add_file_type(LlamaFileType.ALL_F32 if quantise == "F32" else LlamaFileType[f"MOSTLY_{quantise}"])
    (add_hybrid if family in HYBRIDS else add_shape)(writer, config, family)
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
        gguf_name = names.get_name(hybrid_name(known), try_suffixes=(".weight", ".bias"))
        if name == "lm_head.weight":
            gguf_name = "output.weight"  # also where every published model is tied
        assert gguf_name, f"llama.cpp has no name for {name!r}"
        tensors[gguf_name] = array
    rope = rope_parameters(config)
    for length in ("short", "long"):
        if f"{length}_factor" in rope:
            tensors[f"rope_factors_{length}.weight"] = np.asarray(rope[f"{length}_factor"], np.float32)
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = llama3_divisors(rope, head_dim(config), rope_theta(config))
    return tensors


# What the converter's table has under other names.
RENAMED = {f"block_sparse_moe.experts.{name}_proj": f"mlp.experts.{name}_proj" for name in ("gate", "up")}
RENAMED |= {
    f"feed_forward.experts.w{i}": f"mlp.experts.{name}_proj" for i, name in ((1, "gate"), (3, "up"), (2, "down"))
}
RENAMED |= {f"shared_mlp.{name}_proj": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up")}


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
    for name, array in tensors.items():
        for suffix, split in SPLITS.items():
            if name.endswith(suffix):
                found |= {name.removesuffix(suffix) + part: each for part, each in split(array, config).items()}
                break
        else:
            found[name] = array
    return found


def split_latents(array: np.ndarray, config: dict[str, Any]) -> Tensors:
    """Latent attention: keys' `[H, R, N]` and values' `[H, V, R]`."""
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
    "experts.gate_up_proj": lambda array, config: {
        f"experts.{name}_proj.weight": array[..., i::2].swapaxes(1, 2) for i, name in enumerate(("gate", "up"))
    },
    "experts.gate_up_proj_bias": lambda array, config: {
        f"experts.{name}_proj.bias": array[:, i::2] for i, name in enumerate(("gate", "up"))
    },
    "experts.down_proj": lambda array, config: {"experts.down_proj.weight": array.swapaxes(1, 2)},
    "experts.down_proj_bias": lambda array, config: {"experts.down_proj.bias": array},
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
    latents = "kv_lora_rank" in config
    kv_heads = 1 if latents else config.get("num_key_value_heads") or config["num_attention_heads"]
    if family in LFM2S:
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        kv_heads = [kv_heads if kind == "full_attention" else 0 for kind in config["layer_types"]]
    writer.add_head_count_kv(kv_heads)
    if latents:
        add_latents(writer, config, family)
    if "rms_norm_eps" in config or family in LFM2S:
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config["norm_eps"])
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["norm_epsilon"])
    if "head_dim" in config:
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
    softmax = family == "deepseek_v2"
    writer.add_expert_gating_func(ExpertGatingFuncType.SOFTMAX if softmax else ExpertGatingFuncType.SIGMOID)
    if multiplier := (config.get("rope_scaling") or {}).get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * multiplier)


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
        writer.add_add_space_prefix(family not in GEMMAS)
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
