"""Rotary position embeddings (Su et al., 2021) and the ways they are stretched to longer contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vjax.errors import ModelError


class RopeTables(NamedTuple):
    """Cosines and sines `[T, dim / 2]` float32 at a step's positions, shared by all layers of one rope."""

    cos: jax.Array
    sin: jax.Array
    interleaved: bool


@dataclass(frozen=True)
class Rope:
    """How one kind of layer rotates its queries and keys. `dim`: rotated channels of a head, from the first on.

    `scaling`: default, linear, proportional (of the pairs of channels the first `turning` turn, as Gemma 4 has it),
    llama3, yarn, factors (a divisor per frequency, as GGUF files carry them), and two that depend on the length. Keys
    in a cache cannot be rotated again when a sequence grows past the original length, so both go by `length`, the
    longest sequence that the model is to take, as vLLM does:

    * longrope (Ding et al., 2024): `long_factors` if `length` is beyond the original one, else `freq_factors`.
      transformers decides for each sequence, by what it has become.
    * dynamic (NTK): nothing up to the original length; beyond it the base that suits `factor` times the original.
      transformers takes the base that suits the sequence so far.
    """

    dim: int
    theta: float = 10000.0
    scaling: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    turning: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    freq_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    length: int = 0
    interleaved: bool = False  # pairs (0, 1), (2, 3) ... instead of (0, D/2), (1, D/2 + 1) ...

    def frequencies(self) -> np.ndarray:
        """Angle per position for each pair of channels, `[dim / 2]` float32."""
        base = self.theta ** -(np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)
        if self.scaling == "default":
            scaled = base
        elif self.scaling == "linear":
            scaled = base / self.factor
        elif self.scaling == "proportional":
            scaled = np.where(np.arange(self.dim // 2) < self.turning, base / self.factor, 0.0)
        elif self.scaling == "llama3":
            scaled = self._llama3(base)
        elif self.scaling == "yarn":
            scaled = self._yarn(base)
        elif self.scaling == "factors":
            scaled = base / np.asarray(self.freq_factors)
        elif self.scaling == "longrope":
            long = self.length > self.original_max_position
            scaled = base / np.asarray(self.long_factors if long else self.freq_factors)
        elif self.scaling == "dynamic":
            scaled = self._dynamic(base)
        else:
            raise ModelError(f"rope scaling {self.scaling!r} is not supported.")
        return scaled.astype(np.float32)

    def _llama3(self, base: np.ndarray) -> np.ndarray:
        """Llama 3.1: long wavelengths divided by `factor`, short ones kept, a linear blend between."""
        turns = self.original_max_position * base / (2 * math.pi)  # turns within the original context
        blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blend = np.clip(blend, 0, 1)
        return blend * base + (1 - blend) * base / self.factor

    def _yarn(self, base: np.ndarray) -> np.ndarray:
        """YaRN (Peng et al., 2023), equations 17 to 23: the blend is linear in the channel, between two turn counts."""

        def channel(turns: float) -> float:
            return self.dim * math.log(self.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = channel(self.beta_fast), channel(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        ramp = np.clip((np.arange(self.dim // 2) - low) / max(high - low, 0.001), 0, 1)
        return base * (1 - ramp) + base / self.factor * ramp

    def _dynamic(self, base: np.ndarray) -> np.ndarray:
        """NTK-aware scaling (bloc97 and emozilla, 2023) with a sequence of `factor` times the original length."""
        if self.length <= self.original_max_position:
            return base
        stretch = (self.factor * self.factor - (self.factor - 1)) ** (self.dim / (self.dim - 2))
        return (self.theta * stretch) ** -(np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)

    def tables(self, positions: jax.Array) -> RopeTables:
        """The tables for `positions[T]`, scaled by the attention factor."""
        angles = positions.astype(jnp.float32)[:, None] * self.frequencies()
        scale = self.attention_factor
        return RopeTables(jnp.cos(angles) * scale, jnp.sin(angles) * scale, self.interleaved)


def rotate(x: jax.Array, tables: RopeTables) -> jax.Array:
    """Rotate the first `dim` channels of `x[T, ..., D]`; the rest pass through."""
    middle = (1,) * (x.ndim - 2)
    cos, sin = (t.reshape(t.shape[0], *middle, t.shape[1]) for t in tables[:2])
    dim = 2 * cos.shape[-1]
    wide = x[..., :dim].astype(jnp.float32)
    if tables.interleaved:
        a, b = wide[..., 0::2], wide[..., 1::2]
        turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(wide.shape)
    else:
        a, b = wide[..., : dim // 2], wide[..., dim // 2 :]
        turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    turned = turned.astype(x.dtype)
    return turned if dim == x.shape[-1] else jnp.concatenate([turned, x[..., dim:]], axis=-1)


def rotate_last(x: jax.Array, tables: RopeTables) -> jax.Array:
    """Rotate the last channels of `x[T, ..., D]` instead of the first."""
    kept = x.shape[-1] - 2 * tables.cos.shape[-1]
    return jnp.concatenate([x[..., :kept], rotate(x[..., kept:], tables)], axis=-1)


def rope_from_hf(config: dict, dim: int, *, parameters: dict | None = None, theta: float | None = None) -> Rope:
    """The rope of a Hugging Face config: `rope_parameters` (5.x) or `rope_theta` with `rope_scaling` (before).

    `parameters` and `theta` override what the config says, for models with one rope per layer type.
    """
    if parameters is None:
        for name in ("rope_scaling", "rope_parameters"):
            if not isinstance(config.get(name) or {}, dict):
                raise ModelError(f"config field {name!r} must hold an object, got {config[name]!r}.")
        parameters = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = parameters.get("rope_type", parameters.get("type", "default")) or "default"
    base = theta or parameters.get("rope_theta") or config.get("rope_theta") or 10000.0
    if not _is_positive(base):
        raise ModelError(f"rope_theta must be a positive number, got {base!r}.")
    if config.get("rope_freq_factors"):
        return Rope(dim, base, "factors", freq_factors=tuple(config["rope_freq_factors"]))
    if kind in ("default", "mrope"):
        return Rope(dim, base)
    max_position = config.get("max_position_embeddings", 0)
    original = parameters.get("original_max_position_embeddings") or max_position
    try:
        if kind == "linear":
            return Rope(dim, base, "linear", factor=_number(parameters, "factor"))
        if kind == "proportional":
            part, factor = parameters.get("partial_rotary_factor", 1.0), parameters.get("factor", 1.0)
            if not _is_positive(part) or part > 1 or not _is_positive(factor):
                raise ModelError(f"a proportional rope cannot turn {part!r} of a head by {factor!r}.")
            return Rope(dim, base, "proportional", float(factor), turning=int(part * dim // 2))
        if kind == "llama3":
            low, high = _number(parameters, "low_freq_factor"), _number(parameters, "high_freq_factor")
            factor, length = _number(parameters, "factor"), _length(original)
            return Rope(dim, base, "llama3", factor, length, low_freq_factor=low, high_freq_factor=high)
        if kind == "yarn":
            return _yarn_from_hf(parameters, dim, base, _length(original), max_position)
        if kind in ("longrope", "su"):
            # Phi-3 keeps the original length beside `rope_scaling`; that one decides.
            original = config.get("original_max_position_embeddings") or original
            return _longrope_from_hf(parameters, dim, base, original, max_position)
        if kind == "dynamic":
            factor = _number(parameters, "factor")
            return Rope(dim, base, "dynamic", factor, _length(original), length=_length(max_position))
    except KeyError as missing:
        raise ModelError(f"rope_scaling of type {kind!r} lacks {missing.args[0]!r}.") from None
    raise ModelError(
        f"rope_scaling type {kind!r} is not supported; "
        "known: default, linear, proportional, llama3, yarn, longrope, dynamic."
    )


def yarn_mscale(factor: float, m: float) -> float:
    """YaRN's growth of attention with the stretch of the context; DeepSeek scales it by `m`."""
    return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0


def _yarn_from_hf(parameters: dict, dim: int, base: float, original: int, max_position: int) -> Rope:
    factor = _number(parameters, "factor", None if parameters.get("factor") else _length(max_position) / original)
    attention = parameters.get("attention_factor")
    if attention is None:
        m, m_all = (_number(parameters, name, 0.0) for name in ("mscale", "mscale_all_dim"))
        attention = yarn_mscale(factor, m) / yarn_mscale(factor, m_all) if m and m_all else yarn_mscale(factor, 1.0)
    elif not _is_positive(attention):
        raise ModelError(f"rope_scaling's 'attention_factor' must be a positive number, got {attention!r}.")
    return Rope(
        dim,
        base,
        "yarn",
        factor,
        original,
        beta_fast=_number(parameters, "beta_fast", 32.0),
        beta_slow=_number(parameters, "beta_slow", 1.0),
        attention_factor=float(attention),
        truncate=bool(parameters.get("truncate", True)),
    )


def _longrope_from_hf(parameters: dict, dim: int, base: float, original: int, max_position: int) -> Rope:
    def factors(name: str) -> tuple[float, ...]:
        values = parameters[name]
        fine = isinstance(values, list) and len(values) == dim // 2 and all(_is_positive(value) for value in values)
        if not fine:
            raise ModelError(f"rope_scaling's {name!r} must hold {dim // 2} positive numbers.")
        return tuple(float(value) for value in values)

    short, long = factors("short_factor"), factors("long_factor")
    original = _length(original)
    if not _is_positive(max_position):
        raise ModelError(f"max_position_embeddings must be a positive integer, got {max_position!r}.")
    factor, attention = parameters.get("factor") or max_position / original, parameters.get("attention_factor")
    if attention is None and _is_positive(factor):
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(max(original, 2)))
    if not _is_positive(factor) or attention is None or not _is_positive(attention):
        raise ModelError("rope_scaling's 'factor' and 'attention_factor' must be positive numbers.")
    return Rope(
        dim,
        base,
        "longrope",
        factor,
        original,
        attention_factor=float(attention),
        freq_factors=short,
        long_factors=long,
        length=max_position,
    )


def _number(parameters: dict, name: str, default: float | None = None) -> float:
    """A positive number of a scaling; `default` for one that is absent, null or 0, a `KeyError` without a default."""
    value = parameters[name] if default is None else parameters.get(name) or default
    if not _is_positive(value) and (default is None or value != default):
        raise ModelError(f"rope_scaling's {name!r} must be a positive number, got {value!r}.")
    return float(value)


def _length(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"original_max_position_embeddings must be a positive integer, got {value!r}.")
    return value


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
