"""What a case is, and the fields that most of them share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Config = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One tiny model.

    `switches`: changes to the config that turn off what the case is about, one at a time; each must move the logits.
    `tokens`: prompts and tokens a prompt for the stored logits. `zero_centred_norms`: norm weights are w of (1 + w).
    `gguf`: whether a GGUF file can express the config. `renamed`: parts of tensor names that transformers writes
    otherwise than published checkpoints have them, as regular expressions with their replacements.
    `gguf`: whether a GGUF file can express the config.
    `oracle`: the config of another model that computes the same from the same tensors, for one that transformers lacks.
    Such a proof shows that vjax does what is believed of the model, not that the belief is right. `packed`: the model's
    own tensors, given the oracle's and the config, where the two store the same numbers in different ways.
    """

    name: str
    config: Config
    switches: tuple[Config, ...] = ()
    tokens: tuple[int, int] = (2, 28)
    zero_centred_norms: bool = False
    gguf: bool = True
    renamed: tuple[tuple[str, str], ...] = ()
    oracle: Config | None = None
    packed: Callable[[dict[str, np.ndarray], Config], dict[str, np.ndarray]] | None = None

    def published(self, name: str) -> str:
        """The tensor that transformers calls `name`, as checkpoints have it."""
        for pattern, replacement in self.renamed:
            name = re.sub(pattern, replacement, name)
        return name

    @property
    def seen(self) -> Config:
        """What transformers is given."""
        return self.oracle or self.config

    @property
    def family(self) -> str:
        return self.config["model_type"]


def decoder(architecture: str, model_type: str, **fields: Any) -> Config:
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
