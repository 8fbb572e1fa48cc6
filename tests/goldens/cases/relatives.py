"""Relatives of Llama: RMS norms, rotary positions, gated MLPs, and what each does differently."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.goldens.cases.case import LLAMA3_ROPE, NO_SCALING, YARN_ROPE, Case, Config, decoder

Tensors = dict[str, np.ndarray]
HALF_WINDOWS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


def case(name: str, architecture: str, model_type: str, *switches: Config, **fields: Any) -> Case:
    """A case with its switches."""
    extra = {key: fields.pop(key) for key in ("oracle", "packed", "zero_centred_norms", "gguf") if key in fields}
    config = decoder(architecture, model_type, **{"rope_theta": 10000.0, "pad_token_id": 0, **fields})
    return Case(name, config, switches=switches, **extra)


MISTRAL = (
    case(
        "mistral",
        "MistralForCausalLM",
        "mistral",
        {"sliding_window": None},
        {"sliding_window": 6},
        sliding_window=5,
        head_dim=10,
        hidden_size=44,
        gguf=False,  # llama.cpp knows of no window here
    ),
)
ARCEE = (
    case(
        "arcee",
        "ArceeForCausalLM",
        "arcee",
        {"hidden_act": "relu"},
        {"attention_bias": False},
        hidden_act="relu2",
        attention_bias=True,
        mlp_bias=True,
    ),
)
SEED_OSS = (
    case(
        "seed-oss",
        "SeedOssForCausalLM",
        "seed_oss",
        {"attention_bias": False},
        {"attention_out_bias": False},
        attention_bias=True,
        attention_out_bias=True,
        head_dim=12,
    ),
)
SMOLLM3 = (
    case(
        "smollm3",
        "SmolLM3ForCausalLM",
        "smollm3",
        {"no_rope_layers": [1, 1, 1, 1]},
        {"rope_theta": 1e4},
        num_hidden_layers=4,
        no_rope_layers=[1, 1, 1, 0],  # as llama.cpp has it without asking the file
        tie_word_embeddings=True,
        rope_theta=200.0,
    ),
    case(
        "smollm3-window",
        "SmolLM3ForCausalLM",
        "smollm3",
        {"use_sliding_window": False, "layer_types": None},
        {"sliding_window": 6},
        num_hidden_layers=3,
        no_rope_layer_interval=2,
        use_sliding_window=True,
        sliding_window=4,
        gguf=False,  # nor of one here, nor of another interval
    ),
)
ERNIE = (
    case(
        "ernie-4.5",
        "Ernie4_5ForCausalLM",
        "ernie4_5",
        {"use_bias": False},
        {"rope_theta": 1e5},
        head_dim=14,
        use_bias=True,
        rope_theta=500.0,
    ),
)
GRANITE = (
    case(
        "granite",
        "GraniteForCausalLM",
        "granite",
        {"embedding_multiplier": 1.0},
        {"attention_multiplier": 0.5},
        {"residual_multiplier": 1.0},
        {"logits_scaling": 1.0},
        embedding_multiplier=3.0,
        attention_multiplier=0.2,
        residual_multiplier=0.6,
        logits_scaling=0.5,
        attention_bias=True,
    ),
)
OLMO_ROPES = {
    "full_attention": {**YARN_ROPE, "rope_theta": 100.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
OLMO = (
    case("olmo2", "Olmo2ForCausalLM", "olmo2", {"rope_theta": 1e4}, rope_theta=300.0, num_attention_heads=6),
    case(
        "olmo3",
        "Olmo3ForCausalLM",
        "olmo3",
        {"sliding_window": 6},
        {"layer_types": ["full_attention"] * 4},
        {"rope_parameters": {**OLMO_ROPES, "full_attention": {"rope_type": "default", "rope_theta": 100.0}}},
        num_hidden_layers=4,
        sliding_window=5,
        layer_types=HALF_WINDOWS,
        rope_theta=None,
        rope_parameters=OLMO_ROPES,
    ),
)
EXAONE = (
    case(
        "exaone4",
        "Exaone4ForCausalLM",
        "exaone4",
        {"sliding_window": 6},
        {"rope_scaling": None},
        num_hidden_layers=4,
        sliding_window=5,
        sliding_window_pattern=3,
        rope_scaling=LLAMA3_ROPE,
        head_dim=16,
    ),
    case("exaone4-full", "Exaone4ForCausalLM", "exaone4", {"rope_theta": 100.0}, sliding_window=None, head_dim=12),
)
HUNYUAN = (
    case(
        "hunyuan",
        "HunYuanDenseV1ForCausalLM",
        "hunyuan_v1_dense",
        {"rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1.0}},
        {"attention_bias": False},
        head_dim=14,
        attention_bias=True,
        rope_scaling={"type": "dynamic", "factor": 1.0, "alpha": 50.0},
    ),
)
GLM4 = (
    case(
        "glm4",
        "Glm4ForCausalLM",
        "glm4",
        {"partial_rotary_factor": 1.0},
        {"attention_bias": False},
        head_dim=16,
        partial_rotary_factor=0.5,
        attention_bias=True,
        rms_norm_eps=1.5625e-7,
    ),
    case("glm", "GlmForCausalLM", "glm", {"partial_rotary_factor": 1.0}, head_dim=12, attention_bias=True),
)
INTERNLM3 = (
    case(
        "internlm3",
        "InternLM3ForCausalLM",
        "internlm3",
        NO_SCALING,
        qkv_bias=True,
        bias=False,
        rope_scaling={"rope_type": "linear", "factor": 3.0},
        oracle=decoder(
            "Qwen2ForCausalLM",
            "qwen2",
            rope_theta=10000.0,
            use_sliding_window=False,
            rope_scaling={"rope_type": "linear", "factor": 3.0},
        ),
    ),
)
INTERNLM2_NAMES = {
    "model.embed_tokens": "model.tok_embeddings",
    "lm_head": "output",
    "self_attn.o_proj": "attention.wo",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}


def as_internlm2(tensors: Tensors, config: Config) -> Tensors:
    """Llama's tensors under InternLM 2's names: one for all of attention, in which the queries of a key/value head come
    first, then its key and its value."""
    found = {}
    for name, array in tensors.items():
        if ".q_proj." in name:
            groups = config["num_key_value_heads"]
            parts = [tensors[name.replace("q_proj", each)] for each in ("q_proj", "k_proj", "v_proj")]
            rows = np.concatenate([part.reshape(groups, -1, *part.shape[1:]) for part in parts], axis=1)
            found[name.replace("self_attn.q_proj", "attention.wqkv")] = rows.reshape(-1, *array.shape[1:])
        elif ".k_proj." not in name and ".v_proj." not in name:
            for theirs, ours in INTERNLM2_NAMES.items():
                name = name.replace(theirs, ours)
            found[name] = array
    return found


INTERNLM2_SIZES: Config = dict(
    num_attention_heads=6, rope_theta=1e4, rope_scaling={"rope_type": "linear", "factor": 3.0}
)
INTERNLM2 = (
    case(
        "internlm2",
        "InternLM2ForCausalLM",
        "internlm2",
        NO_SCALING,
        bias=False,
        **INTERNLM2_SIZES,
        oracle=decoder("LlamaForCausalLM", "llama", **INTERNLM2_SIZES),
        packed=as_internlm2,
    ),
)
MINICPM_SCALES: Config = {"hidden_size": 48, "num_hidden_layers": 3}
MINICPM = (
    case(
        "minicpm",
        "MiniCPMForCausalLM",
        "minicpm",
        {"embedding_multiplier": 1.0},
        {"residual_multiplier": 1.0},
        {"logits_scaling": 1.0},
        scale_emb=4,
        scale_depth=1.2,
        dim_model_base=16,
        **MINICPM_SCALES,
        oracle=decoder(
            "GraniteForCausalLM",
            "granite",
            rope_theta=10000.0,
            embedding_multiplier=4.0,
            residual_multiplier=1.2 / 3**0.5,
            attention_multiplier=12**-0.5,
            logits_scaling=3.0,
            **MINICPM_SCALES,
        ),
    ),
)
RELATIVES = (
    MISTRAL + ARCEE + SEED_OSS + SMOLLM3 + ERNIE + GRANITE + OLMO + EXAONE + HUNYUAN + GLM4
    + INTERNLM2 + INTERNLM3 + MINICPM
)  # fmt: skip
