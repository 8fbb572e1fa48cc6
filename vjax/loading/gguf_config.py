"""Translates the metadata of a GGUF file into the fields of a Hugging Face `config.json`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vjax.errors import CheckpointError, ModelError
from vjax.loading.gguf import GGUFFile
from vjax.loading.gguf_encoders import ENCODER_FIXES
from vjax.loading.gguf_fields import Fields
from vjax.loading.gguf_fixes import FIXES
from vjax.loading.gguf_gemma4 import gemma4
from vjax.loading.gguf_hybrids import HYBRID_FIXES
from vjax.loading.gguf_latents import LATENT_FIXES

# GGUF architecture -> model_type, architectures[0]
ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma": ("gemma", "GemmaForCausalLM"),
    "gemma2": ("gemma2", "Gemma2ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
    "gemma4": ("gemma4_text", "Gemma4ForCausalLM"),
    "phi2": ("phi", "PhiForCausalLM"),
    "phi3": ("phi3", "Phi3ForCausalLM"),
    "starcoder2": ("starcoder2", "Starcoder2ForCausalLM"),
    "stablelm": ("stablelm", "StableLmForCausalLM"),
    "command-r": ("cohere", "CohereForCausalLM"),
    "cohere2": ("cohere2", "Cohere2ForCausalLM"),
    "lfm2": ("lfm2", "Lfm2ForCausalLM"),
    "lfm2moe": ("lfm2_moe", "Lfm2MoeForCausalLM"),
    "deepseek2": ("deepseek_v3", "DeepseekV3ForCausalLM"),
    "internlm2": ("internlm2", "InternLM2ForCausalLM"),
    "qwen2moe": ("qwen2_moe", "Qwen2MoeForCausalLM"),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
    "gpt-oss": ("gpt_oss", "GptOssForCausalLM"),
    "glm4moe": ("glm4_moe", "Glm4MoeForCausalLM"),
    "minimax-m2": ("minimax_m2", "MiniMaxM2ForCausalLM"),
    "granitemoe": ("granitemoe", "GraniteMoeForCausalLM"),
    "ernie4_5-moe": ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM"),
    "olmoe": ("olmoe", "OlmoeForCausalLM"),
    "granite": ("granite", "GraniteForCausalLM"),
    "arcee": ("arcee", "ArceeForCausalLM"),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM"),
    "minicpm": ("minicpm", "MiniCPMForCausalLM"),
    "seed_oss": ("seed_oss", "SeedOssForCausalLM"),
    "ernie4_5": ("ernie4_5", "Ernie4_5ForCausalLM"),
    "glm4": ("glm4", "Glm4ForCausalLM"),
    "olmo2": ("olmo2", "Olmo2ForCausalLM"),
    "exaone4": ("exaone4", "Exaone4ForCausalLM"),
    "hunyuan-dense": ("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM"),
    "gpt2": ("gpt2", "GPT2LMHeadModel"),
    "minicpm3": ("minicpm3", "MiniCPM3ForCausalLM"),
    "chatglm": ("glm", "GlmForCausalLM"),
    "glm-dsa": ("glm_moe_dsa", "GlmMoeDsaForCausalLM"),
    "bert": ("bert", "BertModel"),
    "modern-bert": ("modernbert", "ModernBertModel"),
    "mamba2": ("mamba2", "Mamba2ForCausalLM"),
    "granitehybrid": ("bamba", "BambaForCausalLM"),
    "falcon-h1": ("falcon_h1", "FalconH1ForCausalLM"),
    "nemotron_h": ("nemotron_h", "NemotronHForCausalLM"),
    "nemotron_h_moe": ("nemotron_h", "NemotronHForCausalLM"),
    "qwen3next": ("qwen3_next", "Qwen3NextForCausalLM"),
    "qwen35": ("qwen3_5_text", "Qwen3_5ForCausalLM"),
    "qwen35moe": ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
    "kimi-linear": ("kimi_linear", "KimiLinearForCausalLM"),
}
# Sizes of what a model does not have, which its files leave out or give as 0.
UNUSED = {
    ("mamba2", "attention.head_count"),
    ("mamba2", "feed_forward_length"),
    ("qwen35moe", "feed_forward_length"),
}
VARYING = ("gemma4",)  # whose layers may differ in these: what it adds looks at all
ALL_FIXES = {**FIXES, **LATENT_FIXES, **HYBRID_FIXES, **ENCODER_FIXES, "gemma4": gemma4}
MAX_LAYERS = 10_000
LONG = "rope_factors_long.weight"


def hf_config_from_gguf(gguf: GGUFFile) -> dict[str, Any]:
    """A Hugging Face config for a GGUF model.

    Raises `ModelError` for an architecture that is not supported and `CheckpointError` naming a missing or broken key.
    """
    architecture = gguf.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CheckpointError(f"{gguf.path}: metadata key 'general.architecture' is missing.")
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"{gguf.path}: GGUF architecture {architecture!r} is not supported. Known: {', '.join(ARCHITECTURES)}."
        )
    fields = Fields(gguf, architecture)
    model_type, class_name = ARCHITECTURES[architecture]
    hf = {
        "model_type": model_type,
        "architectures": [class_name],
        **_sizes(fields),
        **_rope(fields),
        **_tokens(fields),
        "attention_bias": "blk.0.attn_q.bias" in gguf.names(),
        "mlp_bias": "blk.0.ffn_up.bias" in gguf.names(),
        "tie_word_embeddings": "output.weight" not in gguf.names(),
    }
    window = fields.optional("attention.sliding_window", int)
    if window:
        hf["sliding_window"] = window
    if architecture in ALL_FIXES:
        ALL_FIXES[architecture](hf, fields)
    return hf


def _sizes(fields: Fields) -> dict[str, Any]:
    hidden, heads = fields.integer("embedding_length"), _size(fields, "attention.head_count")
    layers = fields.integer("block_count")
    if layers > MAX_LAYERS:
        raise fields.fail(f"{fields.architecture}.block_count", f"is {layers}; at most {MAX_LAYERS} are possible")
    eps = fields.optional("attention.layer_norm_rms_epsilon", float)
    eps = fields.optional("attention.layer_norm_epsilon", float) if eps is None else eps
    if eps is None:
        raise fields.fail(f"{fields.architecture}.attention.layer_norm_rms_epsilon", "is missing")
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _of_some_layers(fields, "attention.head_count_kv") or heads,
        "head_dim": _head_dim(fields),
        "intermediate_size": _size(fields, "feed_forward_length"),
        "rms_norm_eps": eps,
        "max_position_embeddings": fields.integer("context_length"),
        "vocab_size": _vocab_size(fields),
    }


def _size(fields: Fields, name: str) -> int:
    """A size of attention or MLPs."""
    if (fields.architecture, name) in UNUSED:
        return 1
    return _of_some_layers(fields, name) or fields.integer(name)


def _of_some_layers(fields: Fields, name: str) -> int | None:
    """In a hybrid, a list with 0 for the layers that have no such part."""
    listed = fields.gguf.metadata.get(f"{fields.architecture}.{name}")
    present = [value for value in listed if value != 0] if isinstance(listed, list) else []
    varying = fields.architecture in VARYING or all(value == present[0] for value in present)
    if present and type(present[0]) is int and varying:
        return present[0]
    return fields.optional(name, int)


def _head_dim(fields: Fields) -> int:
    width = fields.optional("attention.key_length", int)
    return width or max(fields.integer("embedding_length") // _size(fields, "attention.head_count"), 1)


def _vocab_size(fields: Fields) -> int:
    embedding = fields.gguf.names().get("token_embd.weight")
    if embedding is not None:
        return embedding.shape[0]
    tokens = fields.gguf.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else fields.integer("vocab_size")


def _rope(fields: Fields) -> dict[str, Any]:
    hf: dict[str, Any] = {"rope_theta": fields.optional("rope.freq_base", float) or 10000.0}
    width = _head_dim(fields)
    rotated = fields.optional("rope.dimension_count", int) or width
    if rotated != width:
        hf["partial_rotary_factor"] = rotated / width
    kind = fields.optional("rope.scaling.type", str)
    factor = fields.optional("rope.scaling.factor", float)
    if kind in ("linear", "yarn") and not factor:
        raise fields.fail(f"{fields.architecture}.rope.scaling.factor", f"is missing, but the scaling is {kind}")
    if kind == "linear":
        hf["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        hf["rope_scaling"] = _yarn(fields, factor)
    elif kind not in (None, "none") and not (kind == "longrope" and LONG in fields.gguf.names()):
        raise ModelError(f"{fields.gguf.path}: rope scaling {kind!r} is not supported; known: none, linear, yarn.")
    if "rope_freqs.weight" in fields.gguf.names():  # Llama 3.1's scaling, one divisor a frequency
        hf["rope_freq_factors"] = _freq_factors(fields.gguf, "rope_freqs.weight", rotated // 2)
    if LONG in fields.gguf.names():
        hf["rope_scaling"] = {
            "rope_type": "longrope",
            "short_factor": _freq_factors(fields.gguf, "rope_factors_short.weight", rotated // 2),
            "long_factor": _freq_factors(fields.gguf, LONG, rotated // 2),
            "attention_factor": fields.optional("rope.scaling.attn_factor", float) or 1.0,
        }
        original = fields.optional("rope.scaling.original_context_length", int)
        hf["original_max_position_embeddings"] = original or fields.integer("context_length")
    return hf


def _freq_factors(gguf: GGUFFile, name: str, count: int) -> list[float]:
    if name not in gguf.names():
        raise CheckpointError(f"{gguf.path}: tensor {name!r} is missing.")
    factors = gguf.read(name).ravel()
    if len(factors) != count or not np.all(factors > 0):
        raise CheckpointError(f"{gguf.file_of(name)}: tensor {name!r} must hold {count} positive numbers.")
    return [float(value) for value in factors]


def _yarn(fields: Fields, factor: float) -> dict[str, Any]:
    scaling = {"rope_type": "yarn", "factor": factor}
    original = fields.optional("rope.scaling.original_context_length", int)
    attention = fields.optional("rope.scaling.yarn_attn_factor", float)
    extra = fields.optional("rope.scaling.attn_factor", float)
    if attention is None and extra is not None:  # multiplies what the factor alone would give
        attention = extra * (1.0 + 0.1 * math.log(factor)) if factor > 1 else extra
    values = {
        "original_max_position_embeddings": original,
        "attention_factor": attention,
        "beta_fast": fields.optional("rope.scaling.yarn_beta_fast", float),
        "beta_slow": fields.optional("rope.scaling.yarn_beta_slow", float),
    }
    return {**scaling, **{name: value for name, value in values.items() if value is not None}}


def _tokens(fields: Fields) -> dict[str, Any]:
    def token(name: str) -> int | None:
        return fields.optional(f"{name}_token_id", int, prefix="tokenizer.ggml")

    ends = list(dict.fromkeys(i for i in (token("eos"), token("eot"), token("eom")) if i is not None))
    found = {
        "bos_token_id": token("bos"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": token("padding"),
    }
    return {name: value for name, value in found.items() if value is not None}
