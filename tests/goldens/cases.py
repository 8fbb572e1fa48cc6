"""The models whose outputs the goldens pin: the one place to edit to add a family.

To add a family:

1. Write its cases below: a `Case` is a name and the `config.json` of a tiny model, as its checkpoints spell it. Cover
   tied and untied heads, every rope variant and every option the family's published models use; prefer odd sizes.
   Name in `switches` each option that must matter: the generator refuses a case whose logits do not move without it.
2. `pip install torch==2.13.0 transformers==5.24.0` (the `oracle` extra), then
   `python tests/goldens/generate.py NAME ...` writes `tests/goldens/data/NAME.npz` (under 40 KB each). Commit it.
3. If llama.cpp has the family, name its architecture and what its converter changes in `gguf.py`; else set `gguf=False`.

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
    return {**common, **fields}


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
    Case("llama-mha", llama(hidden_size=60, num_attention_heads=5, num_key_value_heads=5, num_hidden_layers=3)),
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
    Case(
        "llama-yarn-attention-factor",
        llama(rope_scaling=YARN_FULL, head_dim=20),
        switches=(
            NO_SCALING,
            {"rope_scaling": {**YARN_FULL, "attention_factor": None}},
            {"rope_scaling": {**YARN_FULL, "beta_fast": 32.0, "beta_slow": 1.0}},
        ),
    ),
    Case("llama-linear-rope", llama(rope_scaling={"type": "linear", "factor": 2.5}), switches=(NO_SCALING,)),
    Case("llama-bias", llama(attention_bias=True, mlp_bias=True, hidden_size=40)),
    Case("llama-head-dim", llama(head_dim=10, hidden_size=28, num_attention_heads=7, num_key_value_heads=1)),
)

CASES = LLAMA
