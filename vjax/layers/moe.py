"""Mixtures of experts (Shazeer et al., 2017): every token through the few experts that its router chooses.

T tokens, E experts, k of them for each token, F their inner width, d the model's width.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from vjax.layers.mlp import Act, activation, gate, mlp
from vjax.layers.routing import Routing, route
from vjax.pallas_kernels.grouped_matmul import group_rows
from vjax.quant import grouped_matmul, grouped_swiglu, matmul


def feed_forward(w: dict[str, Any], x: jax.Array, act: Act, routing: Routing | None) -> jax.Array:
    """A dense MLP, or a mixture where the weights have a router. x: `[T, d]`."""
    if "router" not in w:
        return mlp(w, x, act)
    assert routing is not None
    return moe(w, x, act, routing)


def moe(
    w: dict[str, Any], x: jax.Array, act: Act, routing: Routing, tokens: jax.Array | None = None
) -> jax.Array:  # fmt: skip
    """`x[T, d]` -> `[T, d]`. With `choices[V, k]` the ids of `tokens[T]` choose the experts, and the router but weighs
    them (Roller et al., 2021).

    `w`: `router[E, d]`, `gate_up[E, 2, F, d]`, `down[E, d, F]`; optional `router_bias[E]` (of the logits),
    `choice_bias[E]`, `gate_up_bias[E, 2, F]`, `down_bias[E, d]`, an MLP `shared` for all tokens, and
    `shared_gate[1, d]`, a sigmoid for it. Experts without a gate have `up[E, F, d]` instead. With `latent_in[l, d]` and
    `latent_out[d, l]` the routed experts work on l channels.
    """
    logits = matmul(x, w["router"])
    if "router_bias" in w:
        logits = logits + w["router_bias"].astype(x.dtype)
    ids = w["choices"][tokens] if "choices" in w else None
    chosen = route(logits, routing, w.get("choice_bias"), ids)
    if "latent_in" in w:
        out = matmul(experts(w, matmul(x, w["latent_in"]), *chosen, act), w["latent_out"])
    else:
        out = experts(w, x, *chosen, act)
    if "shared" not in w:
        return out
    shared = mlp(w["shared"], x, act)
    return out + (shared * jax.nn.sigmoid(matmul(x, w["shared_gate"])) if "shared_gate" in w else shared)


def experts(w: dict[str, Any], x: jax.Array, ids: jax.Array, weights: jax.Array, act: Act) -> jax.Array:
    """The weighted sum of what experts `ids[T, k]` make of `x[T, d]`."""
    name = "gate_up" if "gate_up" in w else "up"
    groups = group_rows(ids, w[name].shape[0])
    of_row = jnp.repeat(groups.group, groups.block)
    if name == "gate_up" and act in ("silu", "swish") and "gate_up_bias" not in w:
        active = grouped_swiglu(x, w["gate_up"], groups)  # [rows, F]
    else:
        hidden = grouped_matmul(x, w[name], groups, lay_out=True)  # [rows, 2, F] or [rows, F]
        if f"{name}_bias" in w:
            hidden = hidden + w[f"{name}_bias"][of_row].astype(x.dtype)
        active = gate(hidden[:, 0], hidden[:, 1], act) if name == "gate_up" else activation(act)(hidden)
    out = grouped_matmul(active, w["down"], groups)  # [rows, d]
    if "down_bias" in w:
        out = out + w["down_bias"][of_row].astype(x.dtype)
    chosen = out[groups.place].reshape(*ids.shape, -1)
    return jnp.sum(chosen * weights[:, :, None].astype(x.dtype), axis=1)
