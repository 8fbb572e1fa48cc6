"""What an operator says about pooling (`--pooler-config`), and what a model's config.json says about its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vjax.errors import ModelError
from vjax.models.config import Pooling

Activation = Literal["identity", "sigmoid", "softmax"]

POOLINGS: dict[str, Pooling] = {"CLS": "cls", "LAST": "last", "MEAN": "mean"}
TASKS = ("embed", "classify", "token_embed")
KEYS = {
    "task", "pooling_type", "seq_pooling_type", "tok_pooling_type", "use_activation", "dimensions",
    "enable_chunked_processing", "max_embed_len", "logit_mean", "logit_sigma",
}  # fmt: skip
RENAMED = {"normalize": "use_activation", "softmax": "use_activation", "activation": "use_activation",
           "logit_bias": "logit_mean"}  # fmt: skip


@dataclass(frozen=True)
class PoolerConfig:
    """`pooling`: None: as the model's files say, as for all that is None. `chunked`: embeddings of texts beyond the
    model's length, up to `max_embed_len` tokens, are the mean of their pieces'. Scores of classes become
    `(score - logit_mean) / logit_sigma` before their activation."""

    task: str | None = None
    pooling: Pooling | None = None
    use_activation: bool | None = None
    dimensions: int | None = None
    chunked: bool = False
    max_embed_len: int | None = None
    logit_mean: float = 0.0
    logit_sigma: float = 1.0

    @classmethod
    def read(cls, given: Mapping[str, Any] | None) -> PoolerConfig:
        """Of the JSON object. Raises `ModelError` naming the key."""
        given = given or {}
        for key in given:
            if key in RENAMED:
                raise ModelError(f"pooler_config: {key!r} is called {RENAMED[key]!r} now.")
            if key not in KEYS:
                raise ModelError(f"pooler_config: unknown key {key!r}; known: {', '.join(sorted(KEYS))}.")
        task = given.get("task")
        if task is not None and task not in TASKS:
            raise ModelError(f"pooler_config: task must be one of {', '.join(TASKS)}, got {task!r}.")
        sigma = _number(given, "logit_sigma", 1.0)
        if not sigma:
            raise ModelError("pooler_config: logit_sigma must not be 0.")
        return cls(
            task="token_embed" if given.get("pooling_type") == "ALL" and task is None else task,
            pooling=_pooling(given),
            use_activation=_flag(given, "use_activation", None),
            dimensions=_count(given, "dimensions"),
            chunked=bool(_flag(given, "enable_chunked_processing", False)),
            max_embed_len=_count(given, "max_embed_len"),
            logit_mean=_number(given, "logit_mean", 0.0),
            logit_sigma=sigma,
        )


def class_activation(hf: Mapping[str, Any], labels: int) -> Activation:
    """What makes probabilities of a classifier's scores: `problem_type`, else Sentence Transformers' entry, else by the
    number of labels. Raises `ModelError` for a function that is not known."""
    usual: Activation = "softmax" if labels > 1 else "sigmoid"
    problem = hf.get("problem_type")
    if problem == "regression":
        return "identity"
    if problem == "multi_label_classification":
        return "sigmoid"
    if problem == "single_label_classification":
        return usual
    section = hf.get("sentence_transformers")
    named = section.get("activation_fn") if isinstance(section, Mapping) else None
    named = named or hf.get("sbert_ce_default_activation_function")
    if named is None:
        return usual
    kinds: dict[str, Activation] = {"Identity": "identity", "Sigmoid": "sigmoid", "Softmax": "softmax"}
    kind = kinds.get(str(named).rsplit(".", 1)[-1].removesuffix("()"))
    if kind is None:
        raise ModelError(
            f"config: the activation {named!r} of a classifier is not supported; known: {', '.join(kinds)}."
        )
    return kind


def label_names(hf: Mapping[str, Any], labels: int) -> list[str]:
    """`id2label`, completed as transformers does."""
    named = hf.get("id2label")
    named = {str(key): str(value) for key, value in named.items()} if isinstance(named, Mapping) else {}
    return [named.get(str(i), f"LABEL_{i}") for i in range(labels)]


def matryoshka(hf: Mapping[str, Any]) -> tuple[bool, tuple[int, ...]]:
    """Whether embeddings may be cut, and the sizes if only some are meant (else any)."""
    sizes = hf.get("matryoshka_dimensions") or ()
    if not isinstance(sizes, (list, tuple)) or any(type(size) is not int or size < 1 for size in sizes):
        raise ModelError(f"config field 'matryoshka_dimensions' must be a list of sizes, got {sizes!r}.")
    return bool(sizes or hf.get("is_matryoshka")), tuple(sizes)


def _pooling(given: Mapping[str, Any]) -> Pooling | None:
    if given.get("tok_pooling_type", "ALL") != "ALL":
        raise ModelError(f"pooler_config: tok_pooling_type must be ALL, got {given['tok_pooling_type']!r}.")
    named = given.get("seq_pooling_type", given.get("pooling_type"))
    if named is None or (named == "ALL" and "seq_pooling_type" not in given):
        return None
    if str(named) not in POOLINGS:
        raise ModelError(f"pooler_config: pooling_type must be one of {', '.join(POOLINGS)} or ALL, got {named!r}.")
    return POOLINGS[str(named)]


def _flag(given: Mapping[str, Any], key: str, default: bool | None) -> bool | None:
    value = given.get(key, default)
    if value is not None and type(value) is not bool:
        raise ModelError(f"pooler_config: {key} must be true or false, got {value!r}.")
    return value


def _count(given: Mapping[str, Any], key: str) -> int | None:
    value = given.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise ModelError(f"pooler_config: {key} must be a positive integer, got {value!r}.")
    return value


def _number(given: Mapping[str, Any], key: str, default: float) -> float:
    value = given.get(key, default)
    if type(value) not in (int, float) or value != value or abs(value) == float("inf"):
        raise ModelError(f"pooler_config: {key} must be a number, got {value!r}.")
    return float(value)
