"""`Encoder`: a model that reads whole texts, to vectors or class scores. Pure functions of its parameters, no cache.

Encoders proper attend to both sides; any decoder without its head is one as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from vjax.errors import ModelError
from vjax.layers.context import Context
from vjax.layers.mlp import activation
from vjax.layers.norms import norm
from vjax.models.config import ModelConfig, Pooling
from vjax.models.model import Model
from vjax.models.parts import head_params
from vjax.models.registry import family_for, supported_architectures
from vjax.models.spec import Tree
from vjax.quant import matmul

Task = Literal["embed", "classify", "token_embed"]
CLASSIFIER = "ForSequenceClassification"
MAX_LABELS = 100_000


@dataclass(frozen=True)
class Encoder(Model):
    """`labels`: classes of its head; 0: none, it embeds."""

    pooling: Pooling = "cls"
    normalize: bool = True
    labels: int = 0

    @classmethod
    def from_hf(cls, hf: dict[str, Any], modules: Sentence | None = None) -> Encoder:
        """`modules`: what Sentence Transformers' files say, where the model has them."""
        name = _architecture(hf)
        stem = name.removesuffix(CLASSIFIER).removesuffix("Model")
        known = supported_architectures()
        found = next((n for n in (name, f"{stem}ForCausalLM", f"{stem}Model") if n in known), name)
        family = family_for({**hf, "architectures": [found]})
        config = family.config(hf)
        own: Pooling = config.pooling or "last"
        if name.endswith(CLASSIFIER):
            return cls(family, config, own, False, _labels(hf))
        if modules is None:
            return cls(family, config, "cls" if config.pooling else own)
        return cls(family, config, modules.pooling or own, modules.normalize)

    @property
    def tasks(self) -> tuple[Task, ...]:
        return ("classify", "token_embed") if self.labels else ("embed", "token_embed")

    def spec(self) -> Tree:
        tree = {name: leaf for name, leaf in super().spec().items() if name not in ("head", "head_bias")}
        if self.labels:
            make = self.family.classifier or _score
            tree["classifier"] = make(self.config, self.labels)
        return tree

    def apply(self, params: Tree, tokens: jax.Array, *, positions: Any = None, capture: Sequence[str] = ()) -> Any:
        raise ModelError(f"{self.config.architecture} has no language head; use `encode`.")

    def encode(
        self, params: Tree, tokens: jax.Array, lengths: jax.Array, task: Task, types: jax.Array | None = None
    ) -> jax.Array:
        """Texts `tokens[B, T]`, of which the first `lengths[B]` tokens count, as float32: a vector each `[B, d]`
        (embed), class scores `[B, labels]` before any softmax (classify), or hidden states `[B, T, d]` (token_embed).
        `types[B, T]`: token types, 0 by default.
        """
        if task not in self.tasks:
            raise ModelError(f"{self.config.architecture} does {' and '.join(self.tasks)}, not {task}.")
        hidden = jax.vmap(self.hidden, in_axes=(None, 0, 0, None if types is None else 0))(
            params, tokens, lengths, types
        )  # [B, T, d]
        if task == "token_embed":
            return hidden.astype(jnp.float32)
        pooled = pool(hidden, lengths, self.pooling)
        if task == "classify":
            return self.classify(params["classifier"], pooled).astype(jnp.float32)
        pooled = pooled.astype(jnp.float32)
        size = jnp.linalg.norm(pooled, axis=-1, keepdims=True)
        return pooled / jnp.maximum(size, 1e-12) if self.normalize else pooled

    def hidden(
        self, params: Tree, tokens: jax.Array, length: jax.Array, types: jax.Array | None = None
    ) -> jax.Array:  # fmt: skip
        """Hidden states `[T, d]` after the last norm of one text `tokens[T]`."""
        positions = jnp.arange(tokens.shape[0])
        ctx = Context(positions, tuple(rope.tables(positions) for rope in self.config.ropes), length=length)
        hidden, _ = self._layers(params, self.embed(params, tokens, positions, types), ctx, None)
        return self.final_norm(params, hidden)

    def classify(self, w: Tree, x: jax.Array) -> jax.Array:
        """Scores `[B, labels]` of pooled `x[B, d]`, through a hidden layer where the head has one."""
        if "dense" in w:
            x = matmul(x, w["dense"]) + (w["dense_bias"].astype(x.dtype) if "dense_bias" in w else 0)
            x = activation(self.config.head_act)(x)
        if "norm" in w:
            x = norm(x, w["norm"], self.config.norm_eps)
        out = matmul(x, w["out"])
        return out + w["out_bias"].astype(out.dtype) if "out_bias" in w else out


@dataclass(frozen=True)
class Sentence:
    """How a Sentence Transformers folder pools: its `modules.json` and its pooling module's `config.json`."""

    pooling: Pooling | None
    normalize: bool

    @classmethod
    def read(cls, modules: Any, pooling: Mapping[str, Any]) -> Sentence:
        """Raises `ModelError` for a module or a pooling that is not supported."""
        kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules if isinstance(module, dict)]
        if unknown := sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"}):
            raise ModelError(f"modules.json: module {unknown[0]!r} is not supported.")
        modes = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
        asked = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
        if len(asked) > 1 or any(name not in modes for name in asked):
            raise ModelError(f"pooling by {' and '.join(asked)} is not supported; known: {', '.join(modes)}.")
        found: Any = modes[asked[0]] if asked else None
        return cls(found, "Normalize" in kinds)


def is_encoder(hf: dict[str, Any]) -> bool:
    """Whether a config says so by its architecture: a bare model, or a classifier."""
    name = _architecture(hf)
    return name.endswith(CLASSIFIER) or (name.endswith("Model") and not name.endswith("LMHeadModel"))


def pool(hidden: jax.Array, lengths: jax.Array, pooling: Pooling) -> jax.Array:
    """One vector `[B, d]` for each text of `hidden[B, T, d]`."""
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "last":
        return jnp.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)[:, 0]
    inside = jnp.arange(hidden.shape[1]) < lengths[:, None]
    total = jnp.sum(jnp.where(inside[..., None], hidden.astype(jnp.float32), 0), axis=1)
    return (total / lengths[:, None]).astype(hidden.dtype)


def _score(config: ModelConfig, labels: int) -> Tree:
    """The head of a decoder turned classifier."""
    return head_params(config, labels, out="score", bias=False)


def _architecture(hf: dict[str, Any]) -> str:
    names = hf.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else "unknown"


def _labels(hf: dict[str, Any]) -> int:
    named = hf.get("id2label")
    labels = hf.get("num_labels") or (len(named) if isinstance(named, dict) else 0) or 2
    if type(labels) is not int or not 0 < labels <= MAX_LABELS:
        raise ModelError(f"config field 'num_labels' must be a positive integer, got {labels!r}.")
    return labels
