"""The models whose outputs the goldens pin: the one place to edit to add a family.

To add a family:

1. Write its cases below: a `Case` is a name and the `config.json` of a tiny model, as its checkpoints spell it. Cover
   tied and untied heads, every rope variant and every option the family's published models use; prefer odd sizes.
   Name in `switches` each option that must matter: the generator refuses a case whose logits do not move without it.
2. `pip install torch==2.13.0 transformers==5.24.0` (the `oracle` extra), then
   `python -m tests.goldens.generate NAME ...` writes `tests/goldens/data/NAME.npz` (under 30 KB each). Commit it.
3. If llama.cpp has the family, say in `gguf.py` what it calls it and what its converter changes; else set `gguf=False`.

Every test parametrised over `case_names()` then covers the new cases. Nothing but the generator needs transformers.
Token ids 0 to 2 are special (unknown, bos, eos): prompts do not contain them and greedy paths never reach the eos.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Config = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One tiny model.

    `switches`: changes to the config that turn off what the case is about, one at a time; each must move the logits.
    `tokens`: prompts and tokens a prompt for the stored logits. `zero_centred_norms`: norm weights are w of (1 + w).
    `gguf`: whether a GGUF file can express the config.
    """

    name: str
    config: Config
    switches: tuple[Config, ...] = ()
    tokens: tuple[int, int] = (2, 28)
    zero_centred_norms: bool = False
    gguf: bool = True

    @property
    def family(self) -> str:
        return self.config["model_type"]


def _decoder(architecture: str, model_type: str, **fields: Any) -> Config:
    """The fields that decoders share, changed by `fields`; one given as None is left out."""
    common = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": 107,
        "hidden_size": 48,
        "intermediate_size": 77,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    return {key: value for key, value in {**common, **fields}.items() if value is not None}


def llama(**fields: Any) -> Config:
    return _decoder("LlamaForCausalLM", "llama", **{"rope_theta": 10000.0, **fields})


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.5,
    "original_max_position_embeddings": 24,
}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
YARN_FULL = {**YARN_ROPE, "attention_factor": 1.3, "beta_fast": 1.0, "beta_slow": 0.1}
NO_SCALING: Config = {"rope_scaling": None}

LLAMA = (
    Case(
        "llama-mha",
        llama(vocab_size=283, hidden_size=60, num_attention_heads=5, num_key_value_heads=5, num_hidden_layers=3),
        tokens=(1, 24),
    ),
    Case("llama-gqa", llama(hidden_size=64, intermediate_size=96, num_attention_heads=8)),
    Case(
        "llama-tied",
        llama(hidden_size=36, intermediate_size=53, num_attention_heads=6, tie_word_embeddings=True, rope_theta=500.0),
        switches=({"rope_theta": 10000.0},),
    ),
    Case("llama-llama3-rope", llama(rope_scaling=LLAMA3_ROPE, head_dim=16), switches=(NO_SCALING,)),
    Case(
        "llama-yarn",
        llama(rope_scaling=YARN_ROPE, rope_theta=100.0, num_attention_heads=3, num_key_value_heads=1),
        switches=(NO_SCALING,),
    ),
    Case(  # as GGUF: what the converter writes; llama.cpp itself ignores these three keys for Llama
        "llama-yarn-attention-factor",
        llama(rope_scaling=YARN_FULL, head_dim=20),
        switches=(
            NO_SCALING,
            {"rope_scaling": {**YARN_FULL, "attention_factor": None}},
            {"rope_scaling": {**YARN_FULL, "beta_fast": 32.0, "beta_slow": 1.0}},
        ),
    ),
    Case("llama-linear-rope", llama(rope_scaling={"type": "linear", "factor": 2.5}), switches=(NO_SCALING,)),
    Case(
        "llama-rope-parameters",  # as transformers 5 spells it
        llama(rope_theta=None, rope_parameters={**LLAMA3_ROPE, "rope_theta": 2000.0}),
        switches=({"rope_parameters": {"rope_type": "default", "rope_theta": 2000.0}},),
    ),
    Case(
        "llama-bias",
        llama(attention_bias=True, mlp_bias=True, hidden_size=40),
        switches=({"attention_bias": False}, {"mlp_bias": False}),
    ),
    Case("llama-head-dim", llama(head_dim=10, hidden_size=28, num_attention_heads=7, num_key_value_heads=1)),
)


def qwen2(**fields: Any) -> Config:
    qwen = {"rope_theta": 1e6, "rms_norm_eps": 1e-6, "use_sliding_window": False, "sliding_window": 5}
    return _decoder("Qwen2ForCausalLM", "qwen2", **{**qwen, "max_window_layers": 2, **fields})


QWEN2 = (
    Case("qwen2-untied", qwen2(hidden_size=64, intermediate_size=96, num_hidden_layers=3)),
    Case(
        "qwen2-tied",
        qwen2(hidden_size=42, num_attention_heads=7, num_key_value_heads=1, tie_word_embeddings=True),
        switches=({"rope_theta": 1e4},),
    ),
    Case("qwen2-yarn", qwen2(rope_scaling={**YARN_ROPE, "type": "yarn"}, rope_theta=100.0), switches=(NO_SCALING,)),
    Case(
        "qwen2-sliding",
        qwen2(num_hidden_layers=4, use_sliding_window=True),
        switches=({"use_sliding_window": False}, {"max_window_layers": 1}, {"sliding_window": 6}),
        gguf=False,
    ),
)


def qwen3(**fields: Any) -> Config:
    return _decoder("Qwen3ForCausalLM", "qwen3", **{"rope_theta": 1e6, "rms_norm_eps": 1e-6, "head_dim": 32, **fields})


QWEN3 = (
    Case("qwen3-untied", qwen3(hidden_size=64, intermediate_size=96, num_hidden_layers=3)),
    Case("qwen3-tied", qwen3(hidden_size=35, num_attention_heads=5, num_key_value_heads=1, tie_word_embeddings=True)),
    Case(
        "qwen3-mha", qwen3(head_dim=14, num_attention_heads=3, num_key_value_heads=3), switches=({"rope_theta": 1e4},)
    ),
    Case("qwen3-yarn", qwen3(head_dim=18, rope_scaling=YARN_ROPE, rope_theta=100.0), switches=(NO_SCALING,)),
)


def gemma3(**fields: Any) -> Config:
    gemma: Config = {"rms_norm_eps": 1e-6, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 5}
    gemma |= {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "hidden_act": None, **fields}
    return _decoder("Gemma3ForCausalLM", "gemma3_text", **gemma)


GEMMA_ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 4e4},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}

GEMMA3 = (
    Case(  # five windowed layers to one full, the one pattern that a GGUF file implies
        "gemma3",
        gemma3(
            vocab_size=283,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=7,
            rope_theta=1e6,
            rope_local_base_freq=1e4,
        ),
        switches=({"sliding_window": 6}, {"rope_theta": 1e4}, {"rope_local_base_freq": 1e6}),
        tokens=(1, 24),
        zero_centred_norms=True,
    ),
    Case(
        "gemma3-pattern",
        gemma3(
            num_hidden_layers=4,
            sliding_window_pattern=3,
            num_key_value_heads=1,
            head_dim=22,
            query_pre_attn_scalar=41,
            rope_theta=1e6,
            rope_local_base_freq=5e3,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
        switches=(NO_SCALING, {"query_pre_attn_scalar": 22}, {"sliding_window_pattern": 2}, {"sliding_window": 4}),
        zero_centred_norms=True,
        gguf=False,
    ),
    Case(
        "gemma3-layer-types",  # as transformers 5 spells it
        gemma3(
            hidden_size=45,
            num_attention_heads=3,
            num_key_value_heads=3,
            num_hidden_layers=3,
            tie_word_embeddings=False,
            sliding_window=7,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
            rope_parameters=GEMMA_ROPES,
            final_logit_softcapping=4.0,
        ),
        switches=(
            {"layer_types": ["full_attention", "full_attention", "sliding_attention"]},
            {"rope_parameters": {**GEMMA_ROPES, "sliding_attention": GEMMA_ROPES["full_attention"]}},
            {"final_logit_softcapping": None},
        ),
        zero_centred_norms=True,
        gguf=False,
    ),
)

CASES = LLAMA + QWEN2 + QWEN3 + GEMMA3
