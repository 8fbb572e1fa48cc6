"""What encoders add to a config translated from GGUF, and how a file says that they pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vjax.errors import CheckpointError, ModelError
from vjax.loading.gguf import GGUFFile
from vjax.loading.gguf_fields import Fields
from vjax.models.sentence import Sentence

HEAD, OUT = "cls.weight", "cls.output.weight"  # the hidden layer and the last one of a classifier
POOLINGS: dict[int, Any] = {1: "mean", 2: "cls", 3: "last"}
UNPOOLED = (0, 4)  # a vector for each token, or class scores: the caller asks for either


def _bert(hf: dict[str, Any], fields: Fields) -> None:
    """RoBERTa too: the converter cuts off the rows before its first position."""
    names = fields.gguf.names()
    if "token_types.weight" not in names:
        raise CheckpointError(f"{fields.gguf.path}: tensor 'token_types.weight' is missing.")
    hf |= {"layer_norm_eps": hf["rms_norm_eps"], "type_vocab_size": names["token_types.weight"].shape[0]}
    if (HEAD in names) != (OUT in names):  # BERT's pooler, which the converter leaves out, is a part of its classifier
        raise CheckpointError(
            f"{fields.gguf.path}: tensor {OUT if HEAD in names else HEAD!r} is missing, so the classifier is not whole."
        )
    if OUT in names:
        hf |= {"architectures": ["BertForSequenceClassification"], "num_labels": names[OUT].shape[0]}


def _modern_bert(hf: dict[str, Any], fields: Fields) -> None:
    """Files do not say how a classifier pools; to llama.cpp it is by the mean."""
    names = fields.gguf.names()
    hf |= {
        "norm_eps": hf["rms_norm_eps"],
        "hidden_activation": fields.optional("hidden_activation", str) or "gelu",
        "global_rope_theta": hf["rope_theta"],
        "local_rope_theta": fields.optional("rope.freq_base_swa", float) or 10000.0,
        "global_attn_every_n_layers": fields.optional("attention.sliding_window_pattern", int) or 3,
    }
    if "sliding_window" in hf:
        hf["local_attention"] = hf["sliding_window"]
    else:
        hf["layer_types"] = ["full_attention"] * hf["num_hidden_layers"]
    if OUT in names:  # a hidden layer without it is left over from pretraining
        hf |= {"architectures": ["ModernBertForSequenceClassification"], "num_labels": names[OUT].shape[0]}
        hf |= {"classifier_pooling": "mean", "classifier_bias": "cls.bias" in names}


ENCODER_FIXES: dict[str, Callable[[dict[str, Any], Fields], None]] = {"bert": _bert, "modern-bert": _modern_bert}


def sentence_from_gguf(gguf: GGUFFile) -> Sentence | None:
    """How an encoder's file pools; None where it does not say. Vectors get the length 1, as llama.cpp gives them."""
    architecture = gguf.metadata.get("general.architecture")
    if architecture not in ENCODER_FIXES:
        return None
    value = Fields(gguf, str(architecture)).optional("pooling_type", int)
    if value is None or value in UNPOOLED:
        return None
    if value not in POOLINGS:
        raise ModelError(f"{gguf.path}: metadata key '{architecture}.pooling_type' is {value}, which is not known.")
    return Sentence(POOLINGS[value], True)
