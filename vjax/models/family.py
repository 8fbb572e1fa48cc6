"""`Family`: what a model file declares. One value a file, found by the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from vjax.layers.context import Context
from vjax.layers.paging import Cache
from vjax.models.config import ModelConfig
from vjax.models.spec import Tree


class Block(Protocol):
    """One decoder layer. The residual stream is `x[T, d] + update[T, d]`: what the last half-layer computed is added by
    the norm that reads it next (`layers.norms.add_norm`), so that both are one kernel. `update` is None at first.

    Weights, the stream, the pass, the cache (or None) -> the new `x`, `update` and cache.
    """

    def __call__(
        self, w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
        config: Any, layer: int,
    ) -> tuple[jax.Array, jax.Array | None, Cache | None]: ...  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A family of decoders.

    `config` reads a Hugging Face config (or one translated from GGUF); `params` gives the abstract tree; `gguf_tensor`
    undoes what llama.cpp's converter did to a tensor, called with its Hugging Face name and float32 values.
    `optional_prefix`: what the names of some published checkpoints lack. `unused`: names of tensors that a checkpoint
    may hold beyond the model's, a regular expression. `classifier` describes the head of a classifier with so many
    labels (`models.encoder`).
    """

    name: str
    architectures: tuple[str, ...]
    config: Callable[[dict[str, Any]], ModelConfig]
    params: Callable[[Any], Tree]  # of what `config` gives, perhaps a class of the family's own
    block: Block
    gguf: tuple[str, ...] = ()
    optional_prefix: str = "model."
    unused: str = ""
    classifier: Callable[[ModelConfig, int], Tree] | None = None
    gguf_tensor: Callable[[str, np.ndarray, Any], np.ndarray] | None = None
