"""Decoders in which some layers attend and others carry a state: which are which, and what they keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from vjax.errors import ModelError
from vjax.layers.recurrent import Arrays
from vjax.models.config import CacheSpec, ModelConfig, StateSpec, positive
from vjax.models.spec import Param, Source


@dataclass(frozen=True)
class HybridConfig(ModelConfig):
    """Layers of either kind are numbered in their own pool: by their place in these tuples."""

    attention_layers: tuple[int, ...] = ()
    recurrent_layers: tuple[int, ...] = ()
    state_arrays: Arrays = ()  # what a recurrent layer carries

    @property
    def cache_specs(self) -> dict[str, CacheSpec]:
        return {"full": CacheSpec(len(self.attention_layers), self.num_kv_heads, self.head_dim)}

    @property
    def state_spec(self) -> StateSpec | None:
        return StateSpec(len(self.recurrent_layers), self.state_arrays)


C = TypeVar("C", bound=HybridConfig)


def hybrid(
    base: ModelConfig, kind: type[C], attention_layers: tuple[int, ...], recurrent_layers: tuple[int, ...],
    state_arrays: Arrays, **changes: Any,
) -> C:  # fmt: skip
    """`base` as a config of class `kind`, in which each layer has its place in its pool."""
    attention = tuple(
        replace(spec, pool_layer=attention_layers.index(i) if i in attention_layers else 0)
        for i, spec in enumerate(base.attention)
    )
    known = {field.name: getattr(base, field.name) for field in fields(ModelConfig)}
    own = dict(attention_layers=attention_layers, recurrent_layers=recurrent_layers, state_arrays=state_arrays)
    return kind(**{**known, "attention": attention, **own, **changes})


def layer_types(hf: dict[str, Any], known: Sequence[str], default: Sequence[str]) -> list[str]:
    """The kind of every layer, one of `known`."""
    kinds, layers = hf.get("layer_types") or default, positive(hf, "num_hidden_layers")
    if not isinstance(kinds, (list, tuple)) or len(kinds) != layers:
        raise ModelError(f"config field 'layer_types' must list the kind of each of {layers} layers.")
    for kind in kinds:
        if kind not in known:
            raise ModelError(f"config field 'layer_types' holds {kind!r}; known: {', '.join(known)}.")
    return list(kinds)


def places(kinds: Sequence[str], kind: str) -> tuple[int, ...]:
    """The layers of that kind."""
    return tuple(i for i, other in enumerate(kinds) if other == kind)


def conv_weight(name: str, channels: int, size: int) -> Param:
    """A depthwise convolution `[C, n]`, `[C, 1, n]` on disk. Split like the feed-forward width."""
    source = Source(name, (channels, 1, size), (channels, size))
    return Param((channels, size), ("mlp", None), (source,), kind="vector")
