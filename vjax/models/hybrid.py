"""Decoders in which some layers attend and others carry a state: which are which, and what they keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from vjax.errors import ModelError
from vjax.layers.recurrent import Arrays
from vjax.layers.ssm import SSMSpec
from vjax.models.config import CacheSpec, ModelConfig, StateSpec, positive
from vjax.models.spec import Param, Source, Tree, merged, vector, weight


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
    known = {field.name: getattr(base, field.name) for field in fields(base)}
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


@dataclass(frozen=True)
class MambaConfig(HybridConfig):
    """With Mamba-2 layers."""

    ssm: SSMSpec = SSMSpec(1, 1, 1, 1, 2)
    in_bias: bool = False
    out_bias: bool = False
    conv_bias: bool = True


def mamba_spec(hf: dict[str, Any], **changes: Any) -> SSMSpec:
    """Of a config that spells its fields `mamba_...`."""
    inner = hf.get("mamba_d_ssm") or positive(hf, "mamba_expand", 2) * positive(hf, "hidden_size")
    heads, head_dim = positive(hf, "mamba_n_heads", 128), hf.get("mamba_d_head", "auto")
    if head_dim == "auto":
        head_dim = inner // heads
    groups = positive(hf, "mamba_n_groups", 1)
    if heads * head_dim != inner or heads % groups:
        raise ModelError(f"mamba_n_heads={heads} of {head_dim} channels in {groups} groups do not make up {inner}.")
    fields = dict(
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state=positive(hf, "mamba_d_state", 256),
        conv_size=positive(hf, "mamba_d_conv", 4),
        act=hf.get("hidden_act") or "silu",
        norm_eps=float(hf.get("rms_norm_eps", 1e-5)),
        time_step=time_step_limit(hf),
    )
    return SSMSpec(**{**fields, **changes})


def mamba2_params(config: MambaConfig, prefix: str) -> Tree:
    """Of `layers.ssm.mamba2`. On disk `in_proj` holds gate, x, B, C and dt, and `conv1d` x, B and C."""
    spec, width = config.ssm, config.hidden_size
    heads, inner, shared = spec.heads, spec.heads * spec.head_dim, spec.groups * spec.state
    zx, bc, n = (2, heads, spec.head_dim), (2, spec.groups, spec.state), spec.conv_size
    rows, channels = 2 * inner + 2 * shared + heads, inner + 2 * shared
    zx_axes, bc_axes = (None, "heads", None), (None, None, None)

    def part(name: str, whole: tuple[int, ...], start: int, shape: tuple[int, ...], axes: Any, kind: Any) -> Param:
        size = math.prod(shape) // (math.prod(whole[1:]))
        source = Source(f"{prefix}.{name}", whole, shape, rows=(start, start + size))
        return merged((source,), axes, concat=0, kind=kind)

    def projected(
        kind: str, inner_shape: tuple[int, ...], inner_axes: tuple[str | None, ...], leaf: str
    ) -> list[Param]:
        whole = (rows, *inner_shape)
        return [
            part(f"in_proj.{kind}", whole, start, (*shape, *inner_shape), (*axes, *inner_axes), leaf)
            for start, shape, axes in (
                (0, zx, zx_axes), (2 * inner, bc, bc_axes), (rows - heads, (heads,), ("heads",)),
            )
        ]  # fmt: skip

    def convolved(kind: str, stored: tuple[int, ...], size: tuple[int, ...]) -> list[Param]:
        none = (None,) * len(size)
        return [
            part(f"conv1d.{kind}", (channels, *stored), start, (*shape, *size), (*axes, *none), "vector")
            for start, shape, axes in ((0, zx[1:], zx_axes[1:]), (inner, bc, bc_axes))
        ]

    params: Tree = dict(zip(("zx", "bc", "dt_in"), projected("weight", (width,), ("embed",), "weight"), strict=True))
    params |= zip(("x_conv", "bc_conv"), convolved("weight", (1, n), (n,)), strict=True)
    if config.in_bias:
        params |= zip(("zx_bias", "bc_bias", "dt_in_bias"), projected("bias", (), (), "vector"), strict=True)
    if config.conv_bias:
        params |= zip(("x_conv_bias", "bc_conv_bias"), convolved("bias", (), ()), strict=True)
    if config.out_bias:
        params["out_bias"] = vector(f"{prefix}.out_proj.bias", (width,), fill=0.0)
    if spec.gate != "alone":
        params["norm"] = vector(f"{prefix}.norm.weight", (inner,), ("heads",))
    return params | {
        "dt_bias": vector(f"{prefix}.dt_bias", (heads,), ("heads",)),
        "a_log": vector(f"{prefix}.A_log", (heads,), ("heads",), fill=0.0),
        "skip": vector(f"{prefix}.D", (heads,), ("heads",)),
        "out": weight(f"{prefix}.out_proj.weight", (width, inner), ("embed", "heads")),
    }


def decay_from_gguf(name: str, array: np.ndarray, config: Any) -> np.ndarray:
    """llama.cpp stores what a decay's logarithm stands for, negated."""
    return np.log(-array) if name.endswith("A_log") else array


def time_step_limit(hf: dict[str, Any]) -> tuple[float, float]:
    """The bounds of dt; transformers 5 writes infinity as an object."""
    found = hf.get("time_step_limit") or (0.0, math.inf)
    try:
        low, high = (float(v["__float__"] if isinstance(v, dict) else v) for v in found)
    except (TypeError, ValueError, KeyError):
        raise ModelError(f"config field 'time_step_limit' must be two numbers, got {found!r}.") from None
    return low, high
