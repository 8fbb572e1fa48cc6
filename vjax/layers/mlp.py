"""Feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from vjax.errors import ModelError
from vjax.quant import matmul

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_new": partial(jax.nn.gelu, approximate=True),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """The activation that Hugging Face configs call `name`."""
    if name not in ACTIVATIONS:
        raise ModelError(f"hidden_act {name!r} is not supported; known: {', '.join(sorted(ACTIVATIONS))}.")
    return ACTIVATIONS[name]


def gated_mlp(w: dict[str, Any], x: jax.Array, act: str) -> jax.Array:
    """`down(act(gate(x)) * up(x))` (Shazeer, 2020). `gate_up[2, F, d]`, `down[d, F]`, optional biases. x: `[T, d]`."""
    hidden = matmul(x, w["gate_up"])  # [T, 2, F]
    if "gate_up_bias" in w:
        hidden = hidden + w["gate_up_bias"].astype(x.dtype)
    out = matmul(activation(act)(hidden[:, 0]) * hidden[:, 1], w["down"])  # [T, d]
    return out + w["down_bias"].astype(x.dtype) if "down_bias" in w else out
