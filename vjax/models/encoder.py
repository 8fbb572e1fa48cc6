"""`Encoder`: a model that reads whole texts, to vectors or class scores. Pure functions of its parameters, no cache.

Encoders proper attend to both sides; any decoder without its head is one as well.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from vjax.models.pooler_config import PoolerConfig
from vjax.models.registry import family_for, supported_architectures
from vjax.models.sentence import DenseModule, Sentence
from vjax.models.spec import Tree, iter_params
from vjax.quant import matmul, rows

Task = Literal["embed", "classify", "token_embed"]
CLASSIFIER = "ForSequenceClassification"
MAX_LABELS = 100_000
METHODS = ("from_2_way_softmax", "no_post_processing")


@dataclass(frozen=True)
class Encoder(Model):
    """`labels`: classes of its head; 0: none, it embeds. `label_tokens`: a classifier's scores are those of these
    tokens as the next one; `difference`: of two, the second's less the first's, as one score. `dense`: layers over the
    pooled vector."""

    pooling: Pooling = "cls"
    normalize: bool = True
    labels: int = 0
    label_tokens: tuple[int, ...] = ()
    difference: bool = False
    dense: tuple[DenseModule, ...] = ()

    @classmethod
    def from_hf(
        cls, hf: dict[str, Any], modules: Sentence | None = None, *, convert: str = "auto",
        pooler: PoolerConfig | None = None,
    ) -> Encoder:  # fmt: skip
        """`modules`: what Sentence Transformers' files say, where the model has them. `convert`: embed or classify,
        whatever the architecture's name says; `pooler`: what goes before the files."""
        name = _architecture(hf)
        stem = name.removesuffix(CLASSIFIER).removesuffix("Model")
        known = supported_architectures()
        found = next((n for n in (name, f"{stem}ForCausalLM", f"{stem}Model") if n in known), name)
        family = family_for({**hf, "architectures": [found]})
        config = family.config(hf)
        own: Pooling = config.pooling or "last"
        asked = pooler or PoolerConfig()
        classifies = name.endswith(CLASSIFIER) if convert in ("auto", "none") else convert == "classify"
        if classifies:
            tokens, difference = _label_tokens(hf, config.vocab_size)
            labels = (1 if difference else len(tokens)) if tokens else _labels(hf)
            return cls(family, config, asked.pooling or own, False, labels, tokens, difference)
        if modules is None:
            modules = Sentence("cls" if config.pooling else None, True)
        normalize = modules.normalize if asked.use_activation is None else asked.use_activation
        width = config.hidden_size
        for layer in modules.dense:
            if layer.inputs != width:
                raise ModelError(f"{layer.folder}: takes vectors of {layer.inputs} channels, but gets {width}.")
            width = layer.outputs
        return cls(family, config, asked.pooling or modules.pooling or own, normalize, dense=modules.dense)

    @property
    def tasks(self) -> tuple[Task, ...]:
        return ("classify", "token_embed") if self.labels else ("embed", "token_embed")

    @property
    def width(self) -> int:
        """Channels of an embedding."""
        return self.dense[-1].outputs if self.dense else self.config.hidden_size

    def spec(self) -> Tree:
        dropped = ("head_bias",) if self.label_tokens else ("head", "head_bias")
        tree = {name: leaf for name, leaf in super().spec().items() if name not in dropped}
        if self.labels and not self.label_tokens:
            make = self.family.classifier or _score
            tree["classifier"] = make(self.config, self.labels)
        return tree

    def unused(self) -> set[str]:
        """Names of the checkpoint's tensors that a decoder has and this model leaves out."""
        own = {source.name for _, param in iter_params(self.spec()) for source in param.sources}
        return {source.name for _, param in iter_params(super().spec()) for source in param.sources} - own

    def apply(self, params: Tree, tokens: jax.Array, *, positions: Any = None, capture: Sequence[str] = ()) -> Any:
        raise ModelError(f"{self.config.architecture} has no language head; use `encode`.")

    def encode(
        self, params: Tree, tokens: jax.Array, lengths: jax.Array, task: Task, types: jax.Array | None = None,
        normalize: bool | None = None,
    ) -> jax.Array:  # fmt: skip
        """Texts `tokens[B, T]`, of which the first `lengths[B]` tokens count, as float32: a vector each `[B, d]`
        (embed), class scores `[B, labels]` before any softmax (classify), or hidden states `[B, T, d]` (token_embed).
        `types[B, T]`: token types, 0 by default. `normalize`: vectors of length 1; None: as the model's files say.
        """
        if task not in self.tasks:
            raise ModelError(f"{self.config.architecture} does {' and '.join(self.tasks)}, not {task}.")
        hidden = jax.vmap(self.hidden, in_axes=(None, 0, 0, None if types is None else 0))(
            params, tokens, lengths, types
        )  # [B, T, d]
        if task == "token_embed":
            return self.project(params, hidden).astype(jnp.float32)
        pooled = pool(hidden, lengths, self.pooling)
        if task == "classify":
            if self.label_tokens:
                return self.next_token_scores(params, pooled)
            return self.classify(params["classifier"], pooled).astype(jnp.float32)
        pooled = self.project(params, pooled).astype(jnp.float32)
        if not (self.normalize if normalize is None else normalize):
            return pooled
        return pooled / jnp.maximum(jnp.linalg.norm(pooled, axis=-1, keepdims=True), 1e-12)

    def project(self, params: Tree, x: jax.Array) -> jax.Array:
        """`x[..., d]` through the dense layers, where there are any."""
        for layer, w in zip(self.dense, params.get("dense", ()), strict=True):
            x = matmul(x, w["weight"]) + (w["bias"].astype(x.dtype) if layer.bias else 0)
            x = activation(layer.act)(x) if layer.act else x
        return x

    def next_token_scores(self, params: Tree, x: jax.Array) -> jax.Array:
        """Scores `[B, labels]` of `label_tokens` after pooled `x[B, d]`, float32."""
        w = rows(params["head"] if "head" in params else params["embed"], jnp.asarray(self.label_tokens))
        scores = jnp.einsum("bd,nd->bn", x.astype(jnp.float32), w.astype(jnp.float32)) * self.config.logit_scale
        return scores[:, 1:] - scores[:, :1] if self.difference else scores

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


def _label_tokens(hf: dict[str, Any], vocab_size: int) -> tuple[tuple[int, ...], bool]:
    """`classifier_from_token`, as ids (a front end makes them of texts), and whether their difference is the score."""
    ids = hf.get("classifier_from_token")
    if not ids:
        return (), False
    if not isinstance(ids, (list, tuple)) or len(ids) > MAX_LABELS:
        raise ModelError(f"config field 'classifier_from_token' must be a list of tokens, got {ids!r}.")
    if any(type(token) is not int or not 0 <= token < vocab_size for token in ids):
        raise ModelError(f"config field 'classifier_from_token' holds what is no token of the vocabulary: {ids!r}.")
    method = hf.get("method") or (
        "from_2_way_softmax" if hf.get("is_original_qwen3_reranker") else "no_post_processing"
    )
    if method not in METHODS:
        raise ModelError(f"config field 'method' must be one of {', '.join(METHODS)}, got {method!r}.")
    if method == "from_2_way_softmax" and len(ids) != 2:
        raise ModelError("config field 'classifier_from_token' must name two tokens, no before yes.")
    return tuple(ids), method == "from_2_way_softmax"


def _labels(hf: dict[str, Any]) -> int:
    named = hf.get("id2label")
    labels = hf.get("num_labels") or (len(named) if isinstance(named, dict) else 0) or 2
    if type(labels) is not int or not 0 < labels <= MAX_LABELS:
        raise ModelError(f"config field 'num_labels' must be a positive integer, got {labels!r}.")
    return labels
