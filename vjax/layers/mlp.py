"""Feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from vjax.errors import ModelError
from vjax.quant import matmul, swiglu

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_new": partial(jax.nn.gelu, approximate=True),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "gelu_fast": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu2": lambda x: jax.nn.relu(x) ** 2,
}


@dataclass(frozen=True)
class ClampedSwiGLU:
    """GPT-OSS (OpenAI, 2025): both sides clamped, 1 added to the values (`shift`), and a steeper sigmoid. DeepSeek-V4
    only clamps."""

    limit: float
    slope: float = 1.0
    shift: float = 0.0

    def __call__(self, gates: jax.Array, values: jax.Array) -> jax.Array:
        gates, values = jnp.minimum(gates, self.limit), jnp.clip(values, -self.limit, self.limit)
        return (values + self.shift) * gates * jax.nn.sigmoid(self.slope * gates)


Act = str | ClampedSwiGLU  # the name of an activation, or a gated unit as a whole


def activation(name: Act) -> Callable[[jax.Array], jax.Array]:
    """The activation that Hugging Face configs call `name`."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ModelError(f"hidden_act {name!r} is not supported; known: {', '.join(sorted(ACTIVATIONS))}.")
    return ACTIVATIONS[name]


def gate(gates: jax.Array, values: jax.Array, act: Act) -> jax.Array:
    """`act(gates) * values`, or the gated unit itself."""
    return act(gates, values) if isinstance(act, ClampedSwiGLU) else activation(act)(gates) * values


def mlp(w: dict[str, Any], x: jax.Array, act: Act, gate_scale: float = 1.0) -> jax.Array:
    """`down(act(s gate(x)) * up(x))` (Shazeer, 2020; s: `gate_scale`) where there is a gate, else `down(act(up(x)))`.

    `w`: `gate_up[2, F, d]` or `up[F, d]`, `down[d, F]`; optional `gate_up_bias`, `up_bias`, `down_bias`.
    """
    name = "gate_up" if "gate_up" in w else "up"
    if name == "gate_up" and act in ("silu", "swish") and gate_scale == 1.0 and not any("bias" in key for key in w):
        return matmul(swiglu(x, w["gate_up"]), w["down"])
    hidden = matmul(x, w[name])  # [T, 2, F] or [T, F]
    if f"{name}_bias" in w:
        hidden = hidden + w[f"{name}_bias"].astype(x.dtype)
    if name == "gate_up":
        gates = hidden[:, 0] if gate_scale == 1.0 else hidden[:, 0] * gate_scale
        active = gate(gates, hidden[:, 1], act)
    else:
        active = activation(act)(hidden)
    out = matmul(active, w["down"])
    return out + w["down_bias"].astype(x.dtype) if "down_bias" in w else out
