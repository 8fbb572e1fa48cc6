"""The abstract tree: what every parameter is, before any memory is spent. Loading, sharding, random initialisation,
checkpoints and memory planning all read this one description."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

Shape = tuple[int, ...]
Axes = tuple[str | None, ...]
Tree = Any  # nested dicts and tuples


@dataclass(frozen=True)
class Source:
    """A checkpoint tensor: its Hugging Face name, its shape on disk, and the shape it takes before merging.

    `rows`: only these of its first axis, for tensors that are merged on disk. `convert`: what else has to happen to
    the values as stored, such as a transposition.
    """

    name: str
    stored: Shape
    shape: Shape
    rows: tuple[int, int] | None = None
    convert: Callable[[np.ndarray], np.ndarray] | None = None


@dataclass(frozen=True)
class Param:
    """One leaf of a model.

    `shape` is logical: a weight is `[*out, in]`, so that `matmul` contracts the last axis and the merged layouts
    (qkv as `[K, G + 2, D, in]`, gate_up as `[2, F, in]`) stay visible. `axes` names each axis for the sharding rules.
    The checkpoint's `sources`, each reshaped, are concatenated along `concat`, and the result takes `shape`.
    `or_else`: the same parameter as other checkpoints store it, for those that lack these sources.
    """

    shape: Shape
    axes: Axes
    sources: tuple[Source, ...]
    concat: int = 0
    kind: Literal["weight", "vector", "ids"] = "weight"  # a vjax.quant weight for `matmul`, a plain array, or int32
    fill: float | None = None  # random initialisation: a constant (norms), or None for scaled normal numbers
    or_else: Param | None = None

    def __post_init__(self) -> None:
        assert len(self.shape) == len(self.axes), (self.shape, self.axes)

    @property
    def joined(self) -> Shape:
        """The shape of all sources together, before the result takes `shape`."""
        first = self.sources[0].shape
        if not first:
            return first
        return (*first[: self.concat], sum(s.shape[self.concat] for s in self.sources), *first[self.concat + 1 :])

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def weight(name: str, shape: Shape, axes: Axes, stored: Shape | None = None) -> Param:
    """A weight made of one checkpoint tensor, `[out, in]` on disk unless `stored` says otherwise."""
    disk = stored or (math.prod(shape[:-1]), shape[-1])
    return Param(shape, axes, (Source(name, disk, shape),))


def vector(name: str, shape: Shape, axes: Axes | None = None, fill: float | None = 1.0) -> Param:
    """A plain array (norm weights, biases) made of one checkpoint tensor of the same size."""
    source = Source(name, (math.prod(shape),), shape)
    return Param(shape, axes or (None,) * len(shape), (source,), kind="vector", fill=fill)


def merged(
    sources: tuple[Source, ...], axes: Axes, concat: int, kind: Literal["weight", "vector"] = "weight",
    shape: Shape | None = None, or_else: Param | None = None,
) -> Param:  # fmt: skip
    """Several checkpoint tensors as one leaf: fewer, larger matrix products and fewer leaves a call."""
    first, total = sources[0].shape, sum(source.shape[concat] for source in sources)
    shape = shape or (*first[:concat], total, *first[concat + 1 :])
    return Param(shape, axes, sources, concat, kind, fill=None if kind == "weight" else 0.0, or_else=or_else)


def is_param(leaf: Any) -> bool:
    return isinstance(leaf, Param)


def map_params(fn: Callable[[Param], Any], tree: Tree) -> Tree:
    return jax.tree.map(fn, tree, is_leaf=is_param)


def iter_params(tree: Tree) -> Iterator[tuple[str, Param]]:
    """Every parameter with its path in the tree, such as `layers/3/qkv`."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_param)[0]:
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf
